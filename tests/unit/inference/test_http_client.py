"""The engine's HTTP client against a server that answers byte by byte, twice on one connection, or not at all."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.inference.http_client import HttpClient

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


class Server:
    """Answers request number n by `answers[n]`, cut into `piece` bytes; `closes`: the connection, after the first."""

    def __init__(self, answers: list[bytes], piece: int, closes: bool) -> None:
        self.answers, self.piece, self.closes = answers, piece, closes
        self.connections = self.ended = 0
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                self.asked.append(await reader.readexactly(size))
                answer = self.answers.pop(0)
                for start in range(0, len(answer), self.piece):
                    writer.write(answer[start : start + self.piece])
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.ended += 1
        writer.close()


@asynccontextmanager
async def serving(folder: Path, *answers: bytes, piece: int = 1 << 16, closes: bool = False) -> Any:
    server = Server(list(answers), piece, closes)
    listening = await asyncio.start_unix_server(server.serve, folder / "s")
    client = HttpClient(folder / "s", None, 2)
    try:
        yield client, server
    finally:
        client.close()
        listening.close()
        await until(lambda: server.ended == server.connections)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not met():
            await asyncio.sleep(0)


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
async def test_bodies_cut_anywhere_on_one_connection(tmp_path: Path, piece: int) -> None:
    async with serving(tmp_path, WHOLE, STREAM, STREAM, piece=piece) as (client, server):
        told: list[bytes] = []
        assert await client.post("/a", b"1") == (200, b"hello")
        assert await client.post("/a", b"22") == (200, b"abcde")
        assert await client.post("/a", b"", told.append) == (200, b"") and b"".join(told) == b"abcde"
        assert server.connections == 1 and server.asked == [b"1", b"22", b""]


async def test_an_errors_body_is_returned_and_not_handed_over(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\nno"
    async with serving(tmp_path, refusal) as (client, _):
        told: list[bytes] = []
        assert await client.post("/a", b"1", told.append) == (400, b"no") and told == []


@pytest.mark.parametrize("answer", [b"", WHOLE[:-1], STREAM[:-5], b"nonsense\r\n\r\n"])
async def test_what_is_not_whole_is_a_lost_connection(tmp_path: Path, answer: bytes) -> None:
    """The server closes after it."""
    async with serving(tmp_path, answer, closes=True) as (client, _):
        with pytest.raises(ConnectionError):
            await client.post("/a", b"1")


async def test_what_the_reader_of_a_stream_raises_comes_out(tmp_path: Path) -> None:
    def broken(_: bytes) -> None:
        raise ZeroDivisionError("bug")

    async with serving(tmp_path, STREAM, WHOLE) as (client, server):
        with pytest.raises(ZeroDivisionError):
            await client.post("/a", b"1", broken)
        assert await client.post("/a", b"1") == (200, b"hello") and server.connections == 2


async def test_a_cancelled_call_breaks_its_connection_off(tmp_path: Path) -> None:
    async with serving(tmp_path, WHOLE[:10]) as (client, server):
        asking = asyncio.create_task(client.post("/a", b"1"))
        await until(lambda: bool(server.asked))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.ended == 1)
