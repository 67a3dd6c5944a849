"""Many connections over one: every byte arrives, nobody holds up another, and what is no frame ends it all."""

import asyncio
import contextlib
import hashlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from engine.sandbox.remote.within.streams import (
    HEADER,
    LIMIT,
    PIECE,
    WINDOW,
    Decoder,
    FrameError,
    Kind,
    Mux,
    Stream,
    StreamReset,
    carry,
    frame,
)


class Pair:
    """Two ends, joined through pieces of random size; `far` accepts what `near` opens."""

    def __init__(self, seed: int, port: int) -> None:
        self._random, self._port = random.Random(seed), port
        self.near = Mux(lambda batch: self._bring(batch, self.far), lambda *_: None, None)
        self.far = Mux(lambda batch: self._bring(batch, self.near), lambda *_: None, self._accept)

    async def _bring(self, batch: bytes, to: Mux) -> None:
        start = 0
        while start < len(batch):
            size = self._random.randint(1, 70000)
            to.take(batch[start : start + size])
            start += size
            await asyncio.sleep(0)

    async def _accept(self, stream: Stream, port: int) -> None:
        assert port == 8080
        await carry(*await asyncio.open_connection("127.0.0.1", self._port), stream)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Pair"]:
        tasks = [asyncio.create_task(each.run()) for each in (self.near, self.far)]
        try:
            yield self
        finally:
            for each in (self.near, self.far):
                await each.close()
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in done), done


@contextlib.asynccontextmanager
async def served(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def joined(pair: Pair) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, as the agent sees it."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    stream = pair.near.open(8080)
    assert stream is not None
    pair.near.spawn(carry(reader, writer, stream))
    return await asyncio.open_connection(sock=ours)


@pytest.mark.parametrize("seed", range(3))
async def test_64_connections_carry_whole_bodies_and_half_close(seed: int) -> None:
    async def digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.read()  # until the other way has ended: that one stays open
        writer.write(hashlib.sha256(body).digest() + body[::-1])
        await writer.drain()
        writer.close()

    async def ask(pair: Pair, size: int) -> None:
        reader, writer = await joined(pair)
        body = random.Random(size).randbytes(size)
        writer.write(body)
        writer.write_eof()
        assert await reader.read() == hashlib.sha256(body).digest() + body[::-1]
        writer.close()

    async with served(digest) as port, Pair(seed, port).running() as pair:
        sizes = [0, 1, PIECE, WINDOW, WINDOW + 1, 3 << 20, *(1000 + number for number in range(58))]
        await asyncio.gather(*(ask(pair, size) for size in sizes))
        assert not pair.near._streams and not pair.far._streams


async def test_what_nobody_reads_holds_up_nobody_else() -> None:
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if await reader.readexactly(1) == b"m":
            with contextlib.suppress(OSError):
                writer.write(b"x" * (8 << 20))
                await writer.drain()
        else:
            writer.write(b"quick")
            writer.close()

    async with served(serve) as port, Pair(1, port).running() as pair:
        slow = await joined(pair)
        slow[1].write(b"m")
        reader, writer = await joined(pair)
        writer.write(b"q")
        assert await reader.read() == b"quick"
        stuck = pair.near._streams[1]
        assert sum(map(len, stuck._arrived)) <= WINDOW
        assert len(await slow[0].readexactly(8 << 20)) == 8 << 20
        for each in (slow[1], writer, *writers):
            each.close()


async def test_a_connection_that_breaks_is_broken_at_both_ends() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        gone.set()

    async with served(serve) as port, Pair(2, port).running() as pair:
        stream = pair.near.open(8080)
        assert stream is not None
        await gone.wait()
        with pytest.raises(StreamReset):
            while await stream.read():
                pass
            for _ in range(1000):
                await stream.write(b"x" * PIECE)
        stream.reset()


async def test_too_many_connections_are_refused_here() -> None:
    pair = Pair(3, 0)
    assert all(pair.near.open(1) is not None for _ in range(LIMIT))
    assert pair.near.open(1) is None


def test_frames_may_be_cut_anywhere() -> None:
    frames = [(Kind(1 + number % 10), number, b"x" * (number * 7)) for number in range(200)]
    whole = b"".join(frame(*each) for each in frames)
    for seed in range(20):
        chosen, decoder, found, start = random.Random(seed), Decoder(), [], 0
        while start < len(whole):
            size = chosen.choice((1, 3, 9, 500, 70000))
            found += decoder.take(whole[start : start + size])
            start += size
        assert found == frames


async def test_what_is_no_frame_is_refused() -> None:
    async def never(batch: bytes) -> None:
        raise AssertionError

    async def accept(stream: Stream, port: int) -> None:
        await asyncio.sleep(60)

    wrong = [
        HEADER.pack(0, 0, 0),
        HEADER.pack(11, 0, 0),
        HEADER.pack(Kind.DATA, 1, PIECE + 1),
        frame(Kind.OPEN, 1, b"x"),
        frame(Kind.OPEN, 0, b"\0\1"),
        frame(Kind.OPEN, 1, b"\0\1") * 2,
        b"".join(frame(Kind.OPEN, number, b"\0\1") for number in range(1, LIMIT + 2)),
        frame(Kind.OPEN, 1, b"\0\1") + frame(Kind.DATA, 1, b"x" * PIECE) * (WINDOW // PIECE + 1),
        frame(Kind.OPEN, 1, b"\0\1") + frame(Kind.END, 1) + frame(Kind.DATA, 1, b"x"),
        frame(Kind.OPEN, 1, b"\0\1") + frame(Kind.CREDIT, 1, b"\0\0\0\1"),
        frame(Kind.OPEN, 1, b"\0\1") + frame(Kind.CREDIT, 1, b"\1"),
    ]
    for each in wrong:
        mux = Mux(never, lambda *_: None, accept)
        with pytest.raises(FrameError):
            mux.take(each)
        await mux.close()
    for seed in range(200):  # noise never does anything else
        mux, chosen = Mux(never, lambda *_: None, accept), random.Random(seed)
        with contextlib.suppress(FrameError):
            for _ in range(50):
                mux.take(bytes([chosen.randint(0, 12)]) + chosen.randbytes(8) + chosen.randbytes(chosen.randint(0, 40)))
                mux.take(HEADER.pack(chosen.randint(1, 10), chosen.randint(0, 3), 2) + b"\0\1")
        await mux.close()
    mux = Mux(never, lambda *_: None, None)
    with pytest.raises(FrameError, match="nobody may open"):
        mux.take(frame(Kind.OPEN, 1, b"\0\1"))
