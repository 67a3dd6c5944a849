"""What a proxy costs: this project's and its peers' side by side in one run.

    python benchmarks/proxy.py [--alone | --peer NAME…] [--part requests|conversation|memory|bodies]… [--requests N]

Every proxy is a process of its own in front of the same engine (`proxy_engine.py`), which samples nothing and answers
at once. Processor time is the proxy's process and what it started, its client of the engine included. Each peer has a
virtual environment of its own under the cache (`proxy_peers.py`); one that does not install is printed with the reason.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from proxy_client import Connection, load, peak_mb, post
from proxy_peers import PEERS, Peer
from proxy_subjects import Running, before_engine, directly, ours
from proxy_texts import SYSTEM, TOOL, Talk, Texts, checkpoint

Start = Callable[[], AbstractAsyncContextManager[Running]]
WIDTHS = (1, 32, 512)
PARTS = ("requests", "conversation", "bodies", "memory")
ANSWER_TOKENS = 64
"""One event each; with opening, last delta, usage and `[DONE]` a stream has 68."""
TURNS, TURN_TOKENS = 100, 1000
MEMORY_TOKENS, MEMORY_TURNS = 100_000, 20
BODIES = (430_000, 20_000_000)
"""Bytes."""


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


def installed(names: list[str]) -> list[Peer]:
    """Of the peers, those that can be had; the others are named with the reason."""
    found = []
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        reason = peer.install()
        if reason:
            print(f"{peer.name}: not measured: {reason}", flush=True)
        else:
            found.append(peer)
    return found


async def show_requests(texts: Texts, peers: list[Peer], count: int) -> None:
    print(f"\n{'':<30}{'CPU ms a request':>20}{'first byte, ms':>18}{'beyond the engine':>20}")
    kinds = f"{'plain':>11}{'streamed':>9}"
    print(f"{'proxy':<22}{'at once':>8}{kinds}{kinds[2:]}{kinds}")
    base: dict[tuple[int, bool], float] = {}
    subjects: list[tuple[str, Start]] = [("(engine alone)", directly), ("lego-rl", partial(ours, sessions=max(WIDTHS)))]
    for name, start in [*subjects, *((peer.name, partial(before_engine, peer)) for peer in peers)]:
        try:
            async with start() as running:
                for width in WIDTHS:
                    print(f"{name:<22}{width:>8}{await cells(running, texts, base, count, width)}", flush=True)
        except Exception as problem:
            print(f"{name:<22}stopped here: {_told(problem)}", flush=True)


async def cells(running: Running, texts: Texts, base: dict[tuple[int, bool], float], count: int, width: int) -> str:
    figures = []
    for streamed in (False, True):
        wanted = max(count // (2 if streamed else 1), width)
        cpu, first, events = await requests(running, texts, count=wanted, streamed=streamed, width=width)
        figures.append((cpu, first, first - base.setdefault((width, streamed), first)))
    plain, stream = figures
    return (
        f"{plain[0]:>11.2f}{stream[0]:>9.2f}{plain[1]:>9.1f}{stream[1]:>9.1f}{plain[2]:>11.1f}{stream[2]:>9.1f}"
        f"   {events} events"
    )


def _told(problem: BaseException) -> str:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return " ".join(str(problem).split())[:200] or type(problem).__name__


async def show_conversation(texts: Texts, peers: list[Peer]) -> None:
    print(f"\n{TURNS} turns × {TURN_TOKENS} tokens, Qwen3's tokeniser, thinking on")
    print(f"{'proxy':<22}{'tails':>6}{'CPU s':>9}{'kept':>9}{'calls':>9}{'turn 100 / 10':>15}{'tokens':>9}")
    subjects: list[tuple[str, Start]] = [("lego-rl", partial(ours, sessions=1, thinking=True))]
    for name, start in [*subjects, *((peer.name, partial(before_engine, peer)) for peer in peers)]:
        for tools in (True, False):
            talk = texts.talk(TURNS, TURN_TOKENS, tools=tools)
            kind = f"{name:<22}{'tool' if tools else 'user':>6}"
            try:
                async with start() as running:
                    # An engine that is sent messages renders them by the model's own template, as vLLM does.
                    told = await converse(running, talk, {} if name == "lego-rl" else {"tokenizer": str(checkpoint())})
            except Exception as problem:
                print(f"{kind} stopped: {_told(problem)}", flush=True)
                continue
            print(
                f"{kind}{sum(told.cpu):>9.2f}{told.kept:>6}/{TURNS - 1}{told.intact:>5}/{TURNS}{told.growth:>15.2f}"
                f"{told.tokens:>9}",
                flush=True,
            )


async def show_bodies(texts: Texts) -> None:
    print("\na first request of one large body")
    filler = texts.piece(20_000)
    async with ours(sessions=len(BODIES)) as running:
        for endpoint, size in zip(running.endpoints, BODIES, strict=True):
            text = (filler * (size // len(filler) + 1))[:size]
            connection = await Connection.to(endpoint.port)
            used = running.cpu_s()
            answer = await connection.ask(endpoint.request({"messages": [SYSTEM, {"role": "user", "content": text}]}))
            connection.close()
            asked = orjson.loads(answer.body).get("usage", {}).get("prompt_tokens")
            spent = running.cpu_s() - used
            print(
                f"{size / 1e6:>10.2f} MB: status {answer.status}, {asked} prompt tokens, {spent:.2f} CPU-s", flush=True
            )


async def show_memory(texts: Texts, sessions: int, spill: Path | None) -> None:
    """Every session stays open with its whole history."""
    piece = MEMORY_TOKENS // MEMORY_TURNS - 160
    with tempfile.TemporaryDirectory(prefix="lego-rl-spill-", dir=spill) as folder:
        async with ours(sessions=sessions, spill=Path(folder)) as running:
            empty = peak_mb(running.pid)
            used = running.cpu_s()
            for endpoint in running.endpoints:
                connection = await Connection.to(endpoint.port)
                messages: list[Mapping[str, Any]] = [SYSTEM]
                for _ in range(MEMORY_TURNS):
                    messages.append({"role": "user", "content": texts.piece(piece)})
                    answer = await connection.ask(endpoint.request({"messages": messages, "tools": [TOOL]}))
                    if answer.status != 200:
                        raise RuntimeError(f"status {answer.status}: {answer.body[:400]!r}")
                    told = orjson.loads(answer.body)
                    messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
                connection.close()
            tokens, rows = told["usage"]["total_tokens"], told["usage"]["total_tokens"] - 1
            print(
                f"\n{sessions} sessions of {tokens} tokens each, all open; routed experts of 40 layers, top 8, on disk"
            )
            print(
                f"  peak RSS {peak_mb(running.pid):.0f} MB (empty: {empty:.0f} MB), {running.cpu_s() - used:.0f} CPU-s"
            )
            print(f"  routed experts of all: {sessions * rows * 320 / 1e9:.1f} GB", flush=True)


async def run(options: argparse.Namespace) -> None:
    texts = Texts(checkpoint())
    peers = [] if options.alone else installed(options.peer)
    print(f"encoding 1,000 tokens takes {texts.busy_ms():.1f} CPU ms here and now; 1.2 where nothing else runs")
    if "requests" in options.part:
        await show_requests(texts, peers, options.requests)
    if "conversation" in options.part:
        await show_conversation(texts, peers)
    if "bodies" in options.part:
        await show_bodies(texts)
    if "memory" in options.part:
        await show_memory(texts, options.sessions, options.spill)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", default=[])
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append", default=[])
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=512, help="of the part `memory`; 17 GB of disk for 512")
    parser.add_argument("--spill", type=Path, help="folder with room for them")
    options = parser.parse_args()
    options.part = options.part or list(PARTS)
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
