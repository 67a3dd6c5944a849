"""What a proxy costs: this project's and its peers' side by side in one run.

    python benchmarks/proxy.py [--peer NAME]… [--part requests|conversation|memory|bodies]… [--requests N]

Every proxy is a process of its own in front of the same engine (`proxy_engine.py`), which samples nothing and answers
at once. Processor time is the proxy's process and what it started, its client of the engine included. Each peer has a
virtual environment of its own under the cache (`proxy_peers.py`); one that does not install is printed with the reason.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from proxy_client import Connection, Endpoint, load, post, threads_s, tree_s
from proxy_texts import SYSTEM, TOOL, Talk, Texts, checkpoint

HERE = Path(__file__).parent
WIDTHS = (1, 32, 512)
PARTS = ("requests", "conversation", "bodies", "memory")
ANSWER_TOKENS = 64
"""One event each; with opening, last delta, usage and `[DONE]` a stream has 68."""
TURNS, TURN_TOKENS = 100, 1000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(kw_only=True)
class Running:
    """A proxy that serves."""

    pid: int
    engine: int
    """The engine's port."""
    endpoints: list[Endpoint]
    whole_tree: bool = True
    """Whether what the process started is part of it (this project's starts the engine itself)."""
    process: Any = None

    def cpu_s(self) -> float:
        return tree_s(self.pid) if self.whole_tree else threads_s(self.pid)


@contextlib.asynccontextmanager
async def ours(*, sessions: int, thinking: bool = False) -> AsyncIterator[Running]:
    port = free_port()
    command = [sys.executable, str(HERE / "proxy_ours.py"), "--model", str(checkpoint()), "--engine-port", str(port)]
    command += ["--sessions", str(sessions), *(["--thinking"] if thinking else [])]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, limit=1 << 24)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy did not start")
        endpoints = [Endpoint(**each) for each in json.loads(line)]
        yield Running(pid=process.pid, engine=port, endpoints=endpoints, whole_tree=False, process=process)
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def directly() -> AsyncIterator[Running]:
    """The engine without a proxy before it."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, str(HERE / "proxy_engine.py"), "--port", str(port))
    try:
        await answering(port)
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}/v1", key="none", model="model")
        yield Running(pid=process.pid, engine=port, endpoints=[endpoint])
    finally:
        process.kill()
        await process.wait()


async def answering(port: int, within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(OSError):
                (await Connection.to(port)).close()
                return
            await asyncio.sleep(0.1)


# ---------------------------------------------------------------- requests


async def requests(
    running: Running, texts: Texts, *, count: int, streamed: bool, width: int
) -> tuple[float, float, int]:
    """(CPU ms a request, median ms to the first byte, events of a stream)."""
    await post(running.engine, "/script", {"turns": [texts.answer(ANSWER_TOKENS)]})
    body: dict[str, Any] = {
        "messages": [SYSTEM, {"role": "user", "content": "Mend the parser. " * 20}],
        "tools": [TOOL],
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    await load(running.endpoints[-1:], body, count=max(5, width // 16), width=max(1, width // 16))
    used = running.cpu_s()
    result = await load(running.endpoints, body, count=count, width=width)
    return 1000 * (running.cpu_s() - used) / result.count, result.first_ms, result.events


# ---------------------------------------------------------------- conversation


@dataclass(kw_only=True)
class Conversed:
    cpu: list[float] = field(default_factory=list)
    """Seconds of each turn."""
    kept: int = 0
    intact: int = 0
    """Tool calls that arrived as they were sampled."""
    tokens: int = 0

    @property
    def growth(self) -> float:
        """Turn 100 against turn 10, each the median of five turns."""
        return statistics.median(self.cpu[-5:]) / statistics.median(self.cpu[8:13])


async def converse(running: Running, talk: Talk, script: Mapping[str, Any]) -> Conversed:
    await post(running.engine, "/script", {"turns": talk.turns, **script})
    endpoint = running.endpoints[0]
    connection = await Connection.to(endpoint.port)
    messages: list[Mapping[str, Any]] = [SYSTEM, {"role": "user", "content": "Mend the parser."}]
    told = Conversed()
    for turn, tail in zip(talk.turns, talk.tails, strict=True):
        used = running.cpu_s()
        answer = await connection.ask(endpoint.request({"messages": messages, "tools": [TOOL]}))
        told.cpu.append(running.cpu_s() - used)
        if answer.status != 200:
            raise RuntimeError(f"turn {len(told.cpu)}: status {answer.status}: {answer.body[:400]!r}")
        message = orjson.loads(answer.body)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        said = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
        told.intact += said == turn["calls"]
        echo = {"role": "assistant", "content": message.get("content") or ""}
        messages.append(echo | {"tool_calls": calls} if calls else echo)
        if talk.tools:
            call_id = calls[0]["id"] if calls else "none"
            messages.append({"role": "tool", "tool_call_id": call_id, "content": tail})
        else:
            messages.append({"role": "user", "content": tail})
    connection.close()
    report = await post(running.engine, "/report", {})
    told.kept, told.tokens = report["kept"], report["prompt_tokens"]
    return told


# ---------------------------------------------------------------- tables


async def show_requests(texts: Texts, options: argparse.Namespace) -> None:
    print(f"\n{'':<24}{'':>6}{'CPU ms a request':>20}{'first byte, ms':>18}{'beyond the engine':>20}")
    print(
        f"{'proxy':<24}{'at once':>6}{'plain':>11}{'streamed':>9}"
        f"{'plain':>9}{'streamed':>9}{'plain':>11}{'streamed':>9}"
    )
    base: dict[tuple[int, bool], float] = {}
    for name, start in (("(engine alone)", directly), ("lego-rl", lambda: ours(sessions=max(WIDTHS)))):
        async with start() as running:
            for width in WIDTHS:
                cells = []
                for streamed in (False, True):
                    count = max(options.requests // (2 if streamed else 1), width)
                    cpu, first, events = await requests(running, texts, count=count, streamed=streamed, width=width)
                    base.setdefault((width, streamed), first)
                    cells.append((cpu, first, first - base[width, streamed], events))
                (p, s) = cells
                print(
                    f"{name:<24}{width:>6}{p[0]:>12.2f}{s[0]:>9.2f}{p[1]:>9.1f}{s[1]:>9.1f}{p[2]:>11.1f}{s[2]:>9.1f}"
                    f"   {s[3]} events",
                    flush=True,
                )


async def show_conversation(texts: Texts) -> None:
    print(f"\n{TURNS} turns × {TURN_TOKENS} tokens, Qwen3's tokeniser, thinking on")
    print(f"{'proxy':<24}{'tails':>6}{'CPU s':>9}{'kept':>9}{'calls':>9}{'turn 100 / 10':>15}{'tokens':>9}")
    for tools in (True, False):
        talk = texts.talk(TURNS, TURN_TOKENS, tools=tools)
        async with ours(sessions=1, thinking=True) as running:
            told = await converse(running, talk, {})
        print(
            f"{'lego-rl':<24}{'tool' if tools else 'user':>6}{sum(told.cpu):>9.2f}{told.kept:>6}/{TURNS - 1}"
            f"{told.intact:>5}/{TURNS}{told.growth:>15.2f}{told.tokens:>9}",
            flush=True,
        )
        if os.environ.get("SHOW_TURNS"):
            print(" ".join(f"{1000 * each:.1f}" for each in told.cpu))


async def run(options: argparse.Namespace) -> None:
    texts = Texts(checkpoint())
    if "requests" in options.part:
        await show_requests(texts, options)
    if "conversation" in options.part:
        await show_conversation(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", default=[])
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    options.part = options.part or list(PARTS)
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
