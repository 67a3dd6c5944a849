"""What `benchmarks/proxy.py` measures of a proxy that serves: requests, a conversation, large bodies, memory."""

import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from proxy_client import Connection, Endpoint, Refused, load, peak_mb, post
from proxy_subjects import Running, ours
from proxy_texts import SYSTEM, TOOL, Talk, Texts

__all__ = ["Refused"]

ANSWER_TOKENS = 64
"""One event each; with opening, last delta, usage and `[DONE]` a stream has 68."""
CELL_S = 10.0
"""Seconds after which no other round begins."""
TURN_TOKENS = 1000
MEMORY_TOKENS, MEMORY_TURNS = 100_000, 20
BODIES = (430_000, 20_000_000)
"""Bytes."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one request."""

    cpu_ms: float
    first_ms: float
    """Median until the first byte of the body."""
    events: int
    """Of a stream."""


async def requests(running: Running, texts: Texts, *, count: int, streamed: bool, width: int, rounds: int) -> Cost:
    """The least of some rounds of `count` requests, `width` at a time. Raises Refused.

    A harness's system prompt and tools are the same in all; each request has a user's message of its own."""
    await post(running.engine, "/script", {"turns": [texts.answer(ANSWER_TOKENS)]})
    salt = random.Random(f"{width} {streamed}")
    asked: dict[str, Any] = {"tools": [TOOL], "stream": streamed}
    if streamed:
        asked["stream_options"] = {"include_usage": True}

    def body(_: int) -> Mapping[str, Any]:
        words = f"Mend the parser, case {salt.getrandbits(64)}. " * 10
        return asked | {"messages": [SYSTEM, {"role": "user", "content": words}]}

    await load(running.endpoints[-1:], body, count=5, width=1)
    made: list[Cost] = []
    end = time.monotonic() + CELL_S
    while not made or (len(made) < rounds and time.monotonic() < end):
        used = running.cpu_s()
        result = await load(running.endpoints, body, count=count, width=width)
        spent = 1000 * (running.cpu_s() - used) / result.count
        made.append(Cost(cpu_ms=spent, first_ms=result.first_ms, events=result.events))
    return Cost(
        cpu_ms=min(one.cpu_ms for one in made), first_ms=min(one.first_ms for one in made), events=made[-1].events
    )


# ---------------------------------------------------------------- conversation


@dataclass(kw_only=True)
class Conversed:
    cpu: list[float] = field(default_factory=list)
    """Seconds of each turn."""
    kept: int = 0
    intact: int = 0
    """Turns whose tool calls arrived as they were sampled: none lost, changed or made up."""
    tokens: int = 0

    @property
    def growth(self) -> float:
        """The last turn against the tenth, each the median of five turns."""
        return statistics.median(self.cpu[-5:]) / statistics.median(self.cpu[8:13])


async def converse(running: Running, talk: Talk, tokenizer: str, *, echo_reasoning: bool) -> Conversed:
    """One conversation; `tokenizer`: a folder, where the engine is to render messages by the model's own template.

    Another one of two words goes before it: what a proxy loads at its first request is no cost of a conversation."""
    endpoint = running.endpoints[0]
    connection = await Connection.to(endpoint.port)
    await post(running.engine, "/script", {"turns": talk.turns[:1]})
    await connection.ask(endpoint.request({"messages": [SYSTEM, {"role": "user", "content": "Are you there?"}]}))
    await post(running.engine, "/script", {"turns": talk.turns, "tokenizer": tokenizer})
    messages: list[Mapping[str, Any]] = [SYSTEM, {"role": "user", "content": "Mend the parser."}]
    told = Conversed()
    for turn, tail in zip(talk.turns, talk.tails, strict=True):
        used = running.cpu_s()
        answer = await connection.ask(endpoint.request({"messages": messages, "tools": [TOOL]}))
        told.cpu.append(running.cpu_s() - used)
        if answer.status != 200:
            raise Refused(answer)
        message = orjson.loads(answer.body)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        told.intact += [_meaning(call["function"]) for call in calls] == [_meaning(call) for call in turn["calls"]]
        echo = {"role": "assistant", "content": message.get("content") or ""}
        if echo_reasoning and message.get("reasoning_content"):
            echo["reasoning_content"] = message["reasoning_content"]
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


def _meaning(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Spaces between arguments do not change a call."""
    try:
        return call["name"], orjson.loads(call["arguments"])
    except orjson.JSONDecodeError:
        return call["name"], call["arguments"]


# ---------------------------------------------------------------- bodies and memory


async def large_body(running: Running, endpoint: Endpoint, texts: Texts, size: int) -> tuple[int, int | None, float]:
    """(status, prompt tokens, CPU seconds) of a first request of about `size` bytes."""
    filler = texts.piece(20_000)
    text = (filler * (size // len(filler) + 1))[:size]
    connection = await Connection.to(endpoint.port)
    used = running.cpu_s()
    answer = await connection.ask(endpoint.request({"messages": [SYSTEM, {"role": "user", "content": text}]}))
    connection.close()
    asked = orjson.loads(answer.body).get("usage", {}).get("prompt_tokens")
    return answer.status, asked, running.cpu_s() - used


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """Many open sessions."""

    tokens: int
    """Of each."""
    peak_mb: float
    empty_mb: float
    """Before the first request."""
    cpu_s: float
    spilled_gb: float


async def remember(texts: Texts, sessions: int, spill: Path | None) -> Remembered:
    """Every session stays open with its whole history."""
    size = MEMORY_TOKENS // MEMORY_TURNS - 160
    pieces = [texts.piece(size) for _ in range(MEMORY_TURNS)]
    with tempfile.TemporaryDirectory(prefix="lego-rl-spill-", dir=spill) as folder:
        async with ours(sessions=sessions, spill=Path(folder)) as running:
            empty, used, tokens = peak_mb(running.pid), running.cpu_s(), 0
            for endpoint in running.endpoints:
                connection = await Connection.to(endpoint.port)
                messages: list[Mapping[str, Any]] = [SYSTEM]
                for piece in pieces:
                    messages.append({"role": "user", "content": piece})
                    answer = await connection.ask(endpoint.request({"messages": messages, "tools": [TOOL]}))
                    if answer.status != 200:
                        raise Refused(answer)
                    told = orjson.loads(answer.body)
                    messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
                connection.close()
                tokens = told["usage"]["total_tokens"]
            return Remembered(
                tokens=tokens,
                peak_mb=peak_mb(running.pid),
                empty_mb=empty,
                cpu_s=running.cpu_s() - used,
                spilled_gb=sessions * (tokens - 1) * 320 / 1e9,
            )
