"""The clients of `benchmarks/proxy.py`, and how the processor time of another process is read."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson

PER_SESSION = 20
"""Requests that one session gets before the client goes to the next: a trial is no endless row of requests."""


def process_s(pid: int) -> float:
    """Processor seconds of a process: all its threads, those that have ended too; 0 when it has ended itself."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) gives
    except OSError:
        return 0.0


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def tree_s(pid: int) -> float:
    """Processor seconds of a process and of all that it started and that still runs."""
    return process_s(pid) + sum(tree_s(child) for child in children(pid))


def peak_mb(pid: int) -> float:
    """The largest resident memory that a process has had."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a request goes."""

    url: str
    """Up to and with `/v1`."""
    key: str
    model: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    def request(self, body: Mapping[str, Any]) -> bytes:
        raw = orjson.dumps(dict(body) | {"model": self.model})
        path = f"{urlsplit(self.url).path}/chat/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\naccept: */*\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        return head.encode() + raw


@dataclass(kw_only=True)
class Answer:
    """One response."""

    status: int = 0
    body: bytes = b""
    first_s: float = 0.0
    """From the request to the first byte of the body."""
    done: bool = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True


class Connection:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> Answer:
        answer = Answer()
        parser = httptools.HttpResponseParser(answer)
        begun = time.perf_counter()
        self._writer.write(request)
        while not answer.done:
            data = await self._reader.read(1 << 20)
            if not data:
                raise ConnectionError(f"the proxy closed the connection after {answer.body[-200:]!r}")
            parser.feed_data(data)
            if answer.body and not answer.first_s:
                answer.first_s = time.perf_counter() - begun
        answer.status = parser.get_status_code()
        return answer

    def close(self) -> None:
        self._writer.close()


class Refused(Exception):
    """An answer that is none."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"status {answer.status}: {answer.body[:300].decode(errors='replace')}")


@dataclass(kw_only=True)
class Load:
    """What many requests came to."""

    count: int = 0
    firsts: list[float] = field(default_factory=list)
    events: int = 0
    """Of the last answer, where it was a stream."""

    @property
    def first_ms(self) -> float:
        return 1000 * statistics.median(self.firsts)


async def load(endpoints: Sequence[Endpoint], body: Callable[[int], Any], *, count: int, width: int) -> Load:
    """`count` requests, `width` at a time, in rows on a connection of their own to the next session. Raises Refused.

    `body` makes each one's body of its number."""
    result = Load()
    blocks = _blocks(endpoints, count, max(1, min(PER_SESSION, count // width)))

    async def worker() -> None:
        for endpoint, numbers in blocks:
            connection = await Connection.to(endpoint.port)
            for number in numbers:
                answer = await connection.ask(endpoint.request(body(number)))
                if answer.status != 200 or b'"error"' in answer.body:
                    raise Refused(answer)
                result.count += 1
                result.firsts.append(answer.first_s)
                result.events = answer.body.count(b"data: ")
            connection.close()

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(width):
                tasks.create_task(worker())
    except ExceptionGroup as group:
        refused = group.subgroup(Refused)
        raise (refused or group).exceptions[0] from None
    return result


def _blocks(endpoints: Sequence[Endpoint], count: int, size: int) -> Iterator[tuple[Endpoint, range]]:
    for number, start in enumerate(range(0, count, size)):
        yield endpoints[number % len(endpoints)], range(start, min(start + size, count))


async def post(port: int, path: str, body: Any) -> Any:
    """One call that is no model's: of the engine's script, of what a peer wants to be told. Raises RuntimeError."""
    raw = orjson.dumps(body)
    connection = await Connection.to(port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    answer = await connection.ask(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{path}: status {answer.status}: {answer.body[:200]!r}")
    return orjson.loads(answer.body)
