"""How much of each prompt vLLM has cached: `python benchmarks/prefix_cache.py [--conversation C]… [override …]`.

Holds conversations through the real proxy with the real vLLM and prints, turn by turn, the prompt's full blocks, those
served from the prefix cache, and those that could have been: blocks that an earlier stream of the trial filled. The
conversations are a user's tails on what the model really sampled (`user`); tool tails (`tool`); a header that changes
with each request in the system prompt, with (`header`) and without (`unruled`) the rule that names it; one across an
update of the weights (`weights`); and, by its name, a real program in a sandbox. Where the model must call tools a
script says its words: vLLM computes them as it would have computed sampled ones (`Played`), so that cache and routing
are the real ones.

Exits with 1 unless the last turn of each, but for `unruled`, has 98 % of its full blocks from the cache.
"""

import argparse
import asyncio
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
from small_trial import sandbox_for, small_task, trial_of

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.contracts import Harness, TokenSink
from engine.core.records import Exchange, Generation, Segment
from engine.core.specs import ImageSpec, ModelInfo
from engine.inference.scripted import ScriptedEngine
from engine.inference.vllm_http import VllmServer
from engine.proxy.app import LlmProxy
from engine.sandbox.images import DebianImageStore

PORT = 8080
BAR = 0.98
HEADER = r"x-billing-header:[^\n]*"
TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command in the repository and return what it prints.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
TOOLS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "claude_code": ("Bash", "command", {"description": "Look"}),
    "codex": ("exec_command", "cmd", {}),
    "mini_swe_agent": ("bash", "command", {}),
    "opencode": ("bash", "command", {"description": "Look"}),
    "openhands": ("terminal", "command", {}),
    "qwen_code": ("run_shell_command", "command", {"description": "Look", "is_background": False}),
}
"""Of each harness, the tool that runs a command, its argument's name, and what it wants besides."""


@dataclass(frozen=True)
class Turn:
    """One call: its prompt and what of it was cached, in tokens."""

    prompt: int
    cached: int
    possible: int
    """Tokens of the full blocks that an earlier stream of the trial filled."""
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """What a conversation left."""

    exchanges: Sequence[Exchange]
    segments: Sequence[Segment]
    block: int

    def turns(self) -> list[Turn]:
        """Each exchange that was answered."""
        streams: dict[str, np.ndarray] = {"": np.zeros(0, np.int32)}
        turns = []
        for exchange in self.exchanges:
            if len(exchange.sampled_ids) == 0:
                continue
            prompt = np.concatenate([streams[exchange.parent or ""], exchange.prompt_ids])
            shared = max(_shared(prompt[:-1], stream[:-1]) for stream in streams.values())
            streams[exchange.id] = np.concatenate([prompt, exchange.sampled_ids])
            versions = tuple(sorted(set(exchange.policy_versions.tolist())))
            possible = shared // self.block * self.block
            turns.append(Turn(len(prompt), exchange.cached_tokens, possible, versions))
        return turns

    def share(self, turn: Turn) -> float:
        """Of the prompt's full blocks, those that came from the cache."""
        return turn.cached / (turn.prompt // self.block * self.block)

    def show(self, title: str) -> float:
        """Print it; the last turn's share."""
        turns = self.turns()
        print(f"\n{title}: {len(turns)} turns, {len(self.segments)} segments, blocks of {self.block}")
        print(f"  {'turn':>4}{'prompt':>9}{'blocks':>8}{'cached':>8}{'could be':>10}{'share':>9}  versions")
        for number, turn in enumerate(turns, start=1):
            counts = turn.prompt // self.block, turn.cached // self.block, turn.possible // self.block
            cells = "".join(f"{count:>{width}}" for count, width in zip(counts, (8, 8, 10), strict=True))
            print(f"  {number:>4}{turn.prompt:>9}{cells}{self.share(turn):>9.2%}  {turn.versions}", flush=True)
        return self.share(turns[-1])


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common beginning."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


class Played:
    """vLLM under answers that a script gives.

    The prompt is sampled from for one token, which tells what was cached; then the answer's ids are sent behind it, so
    that vLLM holds what it would hold had it sampled them, and tells their routing."""

    def __init__(self, engine: VllmServer, script: ScriptedEngine) -> None:
        self._engine, self._script = engine, script

    async def generate(
        self, prompt_ids: np.ndarray, *, max_tokens: int, sink: TokenSink | None = None, **options: Any
    ) -> Generation:
        said = await self._script.generate(prompt_ids, max_tokens=max_tokens, sink=sink, **options)
        asked = await self._engine.generate(prompt_ids, max_tokens=1, **options)
        stream = np.concatenate([prompt_ids, said.token_ids[:-1]])
        held = await self._engine.generate(stream, max_tokens=1, **options)
        return replace(
            said,
            routed_experts=held.routed_experts,
            policy_versions=np.full(len(said.token_ids), asked.policy_versions[0], np.int32),
            cached_tokens=asked.cached_tokens,
        )


# ---------------------------------------------------------------- what is started


@dataclass(frozen=True)
class Started:
    """vLLM with its model."""

    engine: VllmServer
    model: ModelInfo
    block: int
    folder: Path
    sampled: int
    """Tokens of a turn, at most."""

    @asynccontextmanager
    async def session(self, engine: Any, volatile: Sequence[str] = ()):  # type: ignore[no-untyped-def]
        """A served trial of a client that is no program."""
        proxy = self.proxy(self.sampled if engine is self.engine else 1024)
        await proxy.start(self.model, engine)
        try:
            listener = socket.create_server(("127.0.0.1", 0))
            client = SimpleNamespace(volatile=volatile, side_calls=(), hold_back="turn")
            harness: Any = SimpleNamespace(name="client", max_turns=1000, client=client)
            session = proxy.open(trial_of(small_task(self.folder, None), "client"), harness, listener.getsockname()[1])
            await session.serve(listener)
            yield session
        finally:
            await proxy.stop()

    def proxy(self, turn: int) -> LlmProxy:
        """`turn`: tokens of one answer, at most."""
        room = self.model.max_context
        return LlmProxy(
            temperature=1.0,
            top_p=1.0,
            max_prompt_tokens=room - 1,
            max_response_tokens=room,
            max_tokens_per_turn=turn,
            max_body_mb=64,
        )


@asynccontextmanager
async def started(folder: Path, overrides: Sequence[str], sampled: int):  # type: ignore[no-untyped-def]
    """The configured engine with the tiny model."""
    fixed = ["experiment=mini_swe_agent_gspo", "model=tiny_qwen3_moe", "inference=vllm", "job=show"]
    built = assemble(compose([*fixed, *overrides]))
    await built.model.prepare(lambda _: None)
    engine: Any = built.inference
    await engine.start(built.model.info(), folder)
    try:
        yield Started(engine, built.model.info(), await block_size(engine), folder, sampled)
    finally:
        await engine.stop()


async def block_size(engine: VllmServer) -> int:
    """Of the running server, by its own word."""
    answer = await engine._client.get("/metrics")  # type: ignore[union-attr]
    line = next(line for line in answer.text.splitlines() if line.startswith("vllm:cache_config_info{"))
    return int(line.partition('block_size="')[2].partition('"')[0])


# ---------------------------------------------------------------- conversations

RULES = " ".join(f"Rule {number}: look at file_{number}.py before you change it, and say why." for number in range(150))


async def converse(
    started: Started,
    turns: int,
    *,
    engine: Any = None,
    header: bool = False,
    volatile: Sequence[str] = (),
    between: Callable[[int], Any] | None = None,
) -> Held:
    """A client that appends what came back and its own tail: results where tools were called, else a user's words.

    `header`: the system prompt begins with a line that changes with each request. `between` is awaited before each."""
    async with started.session(engine or started.engine, volatile) as session:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": RULES},
            {"role": "user", "content": f"Conversation {secrets.token_hex(8)}: add() in calc.py is wrong. Mend it."},
        ]
        key = {"authorization": f"Bearer {session.endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=session.endpoint.base_url, headers=key, timeout=600) as client:
            for number in range(turns):
                if between is not None:
                    await between(number)
                if header:
                    line = f"x-billing-header: cch={secrets.token_hex(8)};\n"
                    messages[0] = {"role": "system", "content": line + RULES}
                body = {"model": session.endpoint.model, "messages": messages, "tools": [TOOL]}
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                reply = answer.json()["choices"][0]["message"]
                messages += [reply, *tail(reply, number)]
        exchanges, segments, _ = await session.close()
    return Held(exchanges, segments, started.block)


def tail(reply: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    words = f"Listing {number}: " + " ".join(f"file_{number}_{index}.py" for index in range(12))
    if not reply.get("tool_calls"):
        return [{"role": "user", "content": words}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": words} for call in reply["tool_calls"]]


async def played(started: Started, script: Sequence[Mapping[str, Any]]) -> Played:
    words = ScriptedEngine(script={"*": list(script)}, final_text="Done.", seed=0, probe=None)
    await words.start(started.model, started.folder)
    return Played(started.engine, words)


def calls(name: str, argument: str, more: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Turns of one command each; each third has two."""
    turns = []
    for number in range(count):
        commands = [f"echo look at number {number}", "ls -la"][: 1 + (number % 3 == 0)]
        made = [{"name": name, "arguments": {argument: command, **more}} for command in commands]
        turns.append({"text": f"Step {number}: I look.", "calls": made})
    return turns


async def with_harness(started: Started, name: str, turns: int, overrides: Sequence[str]) -> Held:
    """The real program, in a sandbox, with scripted calls."""
    fixed = ["experiment=mini_swe_agent_gspo", "model=tiny_qwen3_moe", f"harness={name}", "job=show"]
    built = assemble(compose([*fixed, f"schedule.max_turns={turns + 5}", *overrides]))
    harness: Harness = built.harnesses[name]
    images = DebianImageStore()
    written = built.config["tasks"]["image"]
    image = ImageSpec(**{key: tuple(value) if isinstance(value, list) else value for key, value in written.items()})
    task = small_task(started.folder, image)
    for needed in (image, harness.runtime()):
        await images.build(needed, print)
    script = [*calls(*TOOLS[name], turns - 1), {"text": "Done."}]
    proxy = started.proxy(4096)
    async with AsyncExitStack() as stack:
        await built.sandbox.start(images, "benchmark-cache")
        stack.push_async_callback(built.sandbox.stop)
        await proxy.start(started.model, await played(started, script))  # type: ignore[arg-type]
        stack.push_async_callback(proxy.stop)
        session = proxy.open(trial_of(task, name), harness, PORT)
        sandbox = await built.sandbox.create(sandbox_for(task, harness, images))
        stack.push_async_callback(sandbox.stop)
        await sandbox.upload(task.repository, task.workdir)
        await session.serve(await sandbox.listen(PORT))
        launch = harness.launch(task, session.endpoint)
        await sandbox.write(launch.files)
        await sandbox.exec(
            launch.command,
            environment=launch.environment,
            cwd=launch.cwd,
            timeout_s=task.agent_timeout_s,
            stdin=b"",
            warm=launch.warm,
        )
        exchanges, segments, _ = await session.close()
    return Held(exchanges, segments, started.block)


CONVERSATIONS = ("user", "tool", "header", "unruled", "weights")


async def hold(vllm: Started, name: str, count: int, overrides: Sequence[str]) -> tuple[str, Held]:
    """A conversation by its name, and what to call it."""
    if name == "user":
        return "user's tails on sampled turns", await converse(vllm, count)
    if name == "tool":
        engine = await played(vllm, calls("terminal", "command", {}, count))
        return "tool tails", await converse(vllm, count, engine=engine)
    if name == "header":
        held = await converse(vllm, count, header=True, volatile=[HEADER])
        return "a header that changes, with the rule that names it", held
    if name == "unruled":
        return "the same without the rule", await converse(vllm, min(count, 4), header=True)
    if name == "weights":
        title = f"new weights before turn {count // 2 + 1}"
        return title, await converse(vllm, count, between=updates(vllm, count // 2))
    return name, await with_harness(vllm, name, count, overrides)


async def run(options: argparse.Namespace, overrides: Sequence[str]) -> bool:
    good = True
    with tempfile.TemporaryDirectory(prefix="lego-rl-") as folder:
        async with started(Path(folder), overrides, options.sampled) as vllm:
            for name in options.conversation or CONVERSATIONS:
                title, held = await hold(vllm, name, options.turns, overrides)
                good &= held.show(title) >= BAR or name == "unruled"
    print(f"\n{'every' if good else 'NOT EVERY'} last turn has {BAR:.0%} of its full blocks from the cache")
    return good


def updates(vllm: Started, before: int, version: int = 1) -> Callable[[int], Any]:
    """Loads the same weights as a later version, once."""

    async def between(number: int) -> None:
        if number == before:
            await vllm.engine.update_weights(vllm.model.path / "model.safetensors", version)

    return between


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--sampled", type=int, default=24, metavar="TOKENS", help="of a turn, at most")
    names = [*CONVERSATIONS, *sorted(TOOLS)]
    parser.add_argument("--conversation", action="append", choices=names, help="several may be named")
    options, overrides = parser.parse_known_args()
    sys.exit(0 if asyncio.run(run(options, overrides)) else 1)


if __name__ == "__main__":
    main()
