"""What a proxy costs: this project's and its peers' side by side in one run.

    python benchmarks/proxy.py [--alone | --peer NAME…] [--part requests|conversation|bodies|memory]… [--rounds N]
                               [--width 1|32|512]… [--turns N]

Every proxy is a process of its own in front of the same engine (`proxy_engine.py`), which samples nothing and answers
at once. Processor time is that of the proxy's process and of what it started, ended threads and its client of the
engine included. Each figure is the least of `--rounds`: what others do on the machine only adds to it. Each peer has a
virtual environment of its own under the cache (`proxy_peers.py`); what cannot be measured is printed with the reason.
At the end stand this project's bars; the exit code is 1 if one is missed.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from proxy_bars import Bars
from proxy_measures import BODIES, TURN_TOKENS, Refused, Remembered, converse, large_body, remember, requests
from proxy_peers import NOT_MEASURED, PEERS, Peer
from proxy_subjects import Running, before_engine, directly, ours
from proxy_texts import Texts, checkpoint

Start = Callable[[], AbstractAsyncContextManager[Running]]
OURS = "lego-rl"
WIDTHS = (1, 32, 512)
PARTS = ("requests", "conversation", "bodies", "memory")
TAILS = ("tool", "tool*", "user")
SPILLED_BYTES = 34_000_000
"""Routed experts of one session of the part `memory`, and some room."""


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
    if not names:
        print(NOT_MEASURED)
    return found


def told(problem: BaseException) -> str:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return " ".join(str(problem).split())[:200] or type(problem).__name__


# ---------------------------------------------------------------- tables


async def show_requests(texts: Texts, peers: list[Peer], options: argparse.Namespace, bars: Bars) -> None:
    print(f"\n{'':<30}{'CPU ms a request':>20}{'first byte, ms':>18}{'beyond the engine':>20}")
    kinds = f"{'plain':>11}{'streamed':>9}"
    print(f"{'proxy':<22}{'at once':>8}{kinds}{kinds[2:]}{kinds}")
    sessions = max(options.width)
    subjects: list[tuple[str, Start]] = [("(engine alone)", directly), (OURS, partial(ours, sessions=sessions))]
    subjects += [(peer.name, partial(before_engine, peer, sessions=sessions)) for peer in peers]
    base: dict[tuple[int, bool], float] = {}
    for name, start in subjects:
        try:
            async with start() as running:
                refusals: list[str] = []
                for width in options.width:
                    cost = await show_width(running, texts, base, options, width, name, refusals)
                    if name == OURS:
                        bars.most(f"plain request, {width} at once", cost[0], 1.0, "CPU ms")
                        bars.most(f"streamed request (68 events), {width} at once", cost[1], 2.5, "CPU ms")
                for refusal in dict.fromkeys(refusals):
                    print(f"{'':<22}–: {refusal}", flush=True)
        except Exception as problem:
            print(f"{name:<22}stopped here: {told(problem)}", flush=True)
            bars.broken(name == OURS, told(problem))


async def show_width(
    running: Running,
    texts: Texts,
    base: dict[tuple[int, bool], float],
    options: argparse.Namespace,
    width: int,
    name: str,
    refusals: list[str],
) -> list[float]:
    """One line; the CPU ms of a plain and of a streamed request."""
    cpu, first, beyond, costs, events = "", "", "", [], 0
    for streamed, wide in ((False, 11), (True, 9)):
        # A harness keeps its connection: few requests on each would measure how connections are made.
        count = max(options.requests // (2 if streamed else 1), 4 * width)
        try:
            cost = await requests(running, texts, count=count, streamed=streamed, width=width, rounds=options.rounds)
        except Refused as refusal:
            refusals.append(told(refusal))
            cpu, first, beyond = cpu + f"{'–':>{wide}}", first + f"{'–':>9}", beyond + f"{'–':>{wide}}"
            costs.append(float("inf"))
            continue
        engine = base.setdefault((width, streamed), cost.first_ms)
        cpu += f"{cost.cpu_ms:>{wide}.2f}"
        first += f"{cost.first_ms:>9.1f}"
        beyond += f"{cost.first_ms - engine:>{wide}.1f}"
        costs.append(cost.cpu_ms)
        events = cost.events
    print(f"{name:<22}{width:>8}{cpu}{first}{beyond}   {events} events", flush=True)
    return costs


async def show_conversation(texts: Texts, peers: list[Peer], options: argparse.Namespace, bars: Bars) -> None:
    turns = options.turns
    print(f"\n{turns} turns × {TURN_TOKENS} tokens, Qwen3's tokeniser, thinking on; kept: prompts that begin with the")
    print("whole stream before them; calls: turns whose calls came as sampled. tool*: the client drops the reasoning")
    print(f"{'proxy':<22}{'tails':>6}{'CPU s':>9}{'kept':>9}{'calls':>9}{'last / tenth':>15}{'tokens':>9}")
    subjects: list[tuple[str, bool, Start]] = [(OURS, True, partial(ours, sessions=1, thinking=True))]
    subjects += [(peer.name, peer.renders, partial(before_engine, peer, sessions=1)) for peer in peers]
    for name, renders, start in subjects:
        for tails in TAILS:
            kind = f"{name:<22}{tails:>6}"
            talk = texts.talk(turns, TURN_TOKENS, tools=tails != "user")
            try:
                rounds = []
                while len(rounds) < options.rounds and sum(sum(one.cpu) for one in rounds) < 5:
                    async with start() as running:
                        # An engine that is sent messages renders them by the model's own template, as vLLM does.
                        tokenizer = "" if renders else str(checkpoint())
                        rounds.append(await converse(running, talk, tokenizer, echo_reasoning=tails != "tool*"))
            except Exception as problem:
                print(f"{kind} stopped: {told(problem)}", flush=True)
                bars.broken(name == OURS, told(problem))
                continue
            best = min(rounds, key=lambda one: sum(one.cpu))
            growth = min(one.growth for one in rounds)
            print(
                f"{kind}{sum(best.cpu):>9.2f}{best.kept:>6}/{turns - 1}{best.intact:>5}/{turns}{growth:>15.2f}"
                f"{best.tokens:>9}",
                flush=True,
            )
            if name == OURS:
                bars.most(f"conversation, {tails} tails", sum(best.cpu), 0.005 * turns, "CPU s")
                bars.all(f"prefixes kept, {tails} tails", min(one.kept for one in rounds), turns - 1)
                bars.all(f"calls intact, {tails} tails", min(one.intact for one in rounds), turns)
                bars.most(f"last turn against the tenth, {tails} tails", growth, 2.0, "times")


async def show_bodies(texts: Texts, bars: Bars) -> None:
    print("\na first request of one large body")
    async with ours(sessions=len(BODIES)) as running:
        for endpoint, size in zip(running.endpoints, BODIES, strict=True):
            status, asked, spent = await large_body(running, endpoint, texts, size)
            print(f"{size / 1e6:>10.2f} MB: status {status}, {asked} prompt tokens, {spent:.2f} CPU-s", flush=True)
            bars.all(f"a body of {size / 1e6:.2f} MB passes", int(status == 200), 1)


async def show_memory(texts: Texts, options: argparse.Namespace, bars: Bars) -> None:
    free = shutil.disk_usage(options.spill or tempfile.gettempdir()).free
    needed = options.sessions * SPILLED_BYTES
    if free < needed:
        print(f"\nmemory: not measured: {needed / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} are free (--spill)")
        return
    result: Remembered = await remember(texts, options.sessions, options.spill)
    print(
        f"\n{options.sessions} sessions of {result.tokens} tokens each, all open; experts of 40 layers, top 8, on disk"
    )
    print(f"  peak RSS {result.peak_mb:.0f} MB (empty: {result.empty_mb:.0f} MB), {result.cpu_s:.0f} CPU-s")
    print(f"  routed experts of all: {result.spilled_gb:.1f} GB", flush=True)
    if options.sessions >= 512:
        bars.most(f"memory of {options.sessions} sessions", result.peak_mb / 1000, 1.5, "GB")


async def run(options: argparse.Namespace) -> bool:
    """Whether no bar was missed."""
    texts, bars = Texts(checkpoint()), Bars()
    peers = [] if options.alone else installed(options.peer)
    print(f"encoding 1,000 tokens takes {texts.busy_ms():.1f} CPU ms here and now; 1.2 where nothing else runs")
    if "requests" in options.part:
        await show_requests(texts, peers, options, bars)
    if "conversation" in options.part:
        await show_conversation(texts, peers, options, bars)
    if "bodies" in options.part:
        await show_bodies(texts, bars)
    if "memory" in options.part:
        await show_memory(texts, options, bars)
    print(f"\nand at the end {texts.busy_ms():.1f} CPU ms for 1,000 tokens")
    return bars.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", default=[])
    parser.add_argument("--peer", choices=[peer.name for peer in PEERS], action="append", default=[])
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--rounds", type=int, default=9, help="of each measurement; the least counts")
    parser.add_argument("--requests", type=int, default=60, help="of a round; half as many streamed")
    parser.add_argument("--sessions", type=int, default=512, help="of the part `memory`; 17 GB of disk for 512")
    parser.add_argument("--spill", type=Path, help="folder with room for them")
    parser.add_argument("--width", type=int, choices=WIDTHS, action="append", default=[], help="requests at once")
    parser.add_argument("--turns", type=int, default=100, help="of a conversation; at least 15")
    options = parser.parse_args()
    options.width = options.width or list(WIDTHS)
    options.part = options.part or list(PARTS)
    sys.exit(0 if asyncio.run(run(options)) else 1)


if __name__ == "__main__":
    main()
