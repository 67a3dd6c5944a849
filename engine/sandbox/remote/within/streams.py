"""Many connections over one stream of bytes: frames, and what both ends keep of each connection.

A frame is its kind, a number and a length, then so many bytes. One end, the relay beside the agent, opens connections;
the other accepts them. What a connection carries is given a window: nobody sends more than the other has room for, so
one that nobody reads holds up no other, and memory is bounded however the agent behaves.
Invariants: the agent chooses the bytes of its connections, never a frame; each way ends by itself (half-closed); what
breaks a connection ends that one alone, what breaks the rules of the frames (FrameError) ends them all.
Standard library only: it runs at both ends.
"""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from typing import Any

HEADER = struct.Struct(">BII")
PIECE = 1 << 15
"""Bytes of a frame at most."""
WINDOW = 1 << 18
"""Bytes of one connection that may be on their way, or wait to be read."""
LIMIT = 256
"""Connections at a time."""


class Kind(IntEnum):
    """What a frame says; its number is a connection's, but for those that name a port."""

    OPEN = 1
    """A connection to a port (two bytes)."""
    DATA = 2
    END = 3
    """No more comes this way."""
    RESET = 4
    CREDIT = 5
    """There is room for so many more bytes (four bytes)."""
    LISTEN = 6
    """Listen on the port that is its number."""
    ANSWER = 7
    """To that; empty: bound, else why not."""
    HEARD = 8
    """What was tried in vain."""
    PING = 9
    PONG = 10
    """The number is the ping's; what had been heard before it has been told."""


class FrameError(Exception):
    """The other end does not keep to the rules."""


class StreamReset(OSError):
    """The connection was broken at the other end."""


def frame(kind: Kind, number: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEADER.pack(kind, number, len(payload)) + payload


class Decoder:
    """Bytes as they come → frames."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, chunk: bytes) -> list[tuple[Kind, int, bytes]]:
        """The frames that are whole now. Raises FrameError for what is none."""
        self._kept += chunk
        found, start = [], 0
        while len(self._kept) - start >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._kept, start)
            if length > PIECE or not 1 <= kind <= Kind.PONG:
                raise FrameError(f"a frame of kind {kind} and {length} bytes")
            end = start + HEADER.size + length
            if len(self._kept) < end:
                break
            found.append((Kind(kind), number, bytes(self._kept[start + HEADER.size : end])))
            start = end
        del self._kept[:start]
        return found


class Stream:
    """One end of one connection."""

    def __init__(self, mux: "Mux", number: int) -> None:
        self._mux, self.number = mux, number
        self._arrived: deque[bytes] = deque()
        self._waiting = 0
        """Bytes that arrived and are not credited yet."""
        self._credit = WINDOW
        self._ended_there = self._ended_here = self._broken = False
        self._changed = asyncio.Event()

    async def read(self) -> bytes:
        """What came next; empty at the end. Raises StreamReset."""
        while not self._arrived:
            if self._broken:
                raise StreamReset("the connection was broken at the other end")
            if self._ended_there:
                return b""
            await self._wait()
        return self._arrived.popleft()

    def credit(self, size: int) -> None:
        """So many bytes that were read have gone on: there is room for as many more."""
        self._waiting -= size
        if not self._ended_there and not self._broken:
            self._mux.put(Kind.CREDIT, self.number, struct.pack(">I", size))

    async def write(self, contents: bytes) -> None:
        """Send, as the other end has room. Raises StreamReset."""
        sent = 0
        while sent < len(contents):
            while self._credit <= 0 and not self._broken:
                await self._wait()
            if self._broken:
                raise StreamReset("the connection was broken at the other end")
            piece = contents[sent : sent + min(PIECE, self._credit)]
            self._credit -= len(piece)
            sent += len(piece)
            self._mux.put(Kind.DATA, self.number, piece)
            await self._mux.drained()

    def end(self) -> None:
        """No more goes this way."""
        if not self._ended_here and not self._broken:
            self._ended_here = True
            self._mux.put(Kind.END, self.number)
            self._may_go()

    def reset(self) -> None:
        """Break it, unless both ways have ended."""
        if not self._broken and not (self._ended_here and self._ended_there):
            self._mux.put(Kind.RESET, self.number)
            self.broken()

    def broken(self) -> None:
        """It is no more; whoever waits is told."""
        self._broken = True
        self._mux.forget(self.number)
        self._changed.set()

    def take(self, kind: Kind, payload: bytes) -> None:
        """A frame of the other end's. Raises FrameError."""
        if kind is Kind.DATA:
            self._waiting += len(payload)
            if self._waiting > WINDOW or self._ended_there:
                raise FrameError("data beyond what there was room for")
            if payload:
                self._arrived.append(payload)
        elif kind is Kind.END:
            self._ended_there = True
            self._may_go()
        elif kind is Kind.CREDIT:
            if len(payload) != 4 or self._credit + int.from_bytes(payload, "big") > WINDOW:
                raise FrameError("more room than there is")
            self._credit += int.from_bytes(payload, "big")
        else:
            self.broken()
        self._changed.set()

    def _may_go(self) -> None:
        if self._ended_here and self._ended_there:
            self._mux.forget(self.number)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


Accept = Callable[[Stream, int], Coroutine[Any, Any, None]]
Serve = Callable[[Kind, int, bytes], None]


class Mux:
    """One end of the stream."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], serve: Serve, accept: Accept | None) -> None:
        """`serve` gets the frames that are no connection's; `accept`, where the other end may open connections, one
        that it opened and its port."""
        self._send, self._serve, self._accept = send, serve, accept
        self._decoder, self._streams, self._last = Decoder(), dict[int, Stream](), 0
        self._outgoing = bytearray()
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        """Have a frame sent, after those before it."""
        self._outgoing += frame(kind, number, payload)
        self._some.set()
        if len(self._outgoing) > WINDOW:
            self._none.clear()

    @property
    def full(self) -> bool:
        """Whether more waits to be sent than should."""
        return not self._none.is_set()

    async def drained(self) -> None:
        """Wait until there is room for more to be sent."""
        await self._none.wait()

    async def run(self) -> None:
        """Send what is put; ends by an error of `send` alone, or cancelled."""
        while True:
            await self._some.wait()
            batch = bytes(self._outgoing)
            self._outgoing.clear()
            self._some.clear()
            await self._send(batch)
            self._none.set()

    def open(self, port: int) -> Stream | None:
        """A connection of this end's; None: there are too many."""
        if len(self._streams) >= LIMIT:
            return None
        self._last += 1
        stream = self._streams[self._last] = Stream(self, self._last)
        self.put(Kind.OPEN, self._last, struct.pack(">H", port))
        return stream

    def take(self, chunk: bytes) -> None:
        """Bytes of the other end's. Raises FrameError."""
        for kind, number, payload in self._decoder.take(chunk):
            if kind is Kind.OPEN:
                self._opened(number, payload)
            elif kind <= Kind.CREDIT:
                stream = self._streams.get(number)
                if stream is not None:  # else it was broken here, which the other end may not know yet
                    stream.take(kind, payload)
            else:
                self._serve(kind, number, payload)

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the rest, to the end of the mux."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Break every connection; safe to call again."""
        for stream in tuple(self._streams.values()):
            stream.broken()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _opened(self, number: int, payload: bytes) -> None:
        if self._accept is None or len(payload) != 2 or number <= self._last:
            raise FrameError("a connection that nobody may open")
        if len(self._streams) >= LIMIT:
            raise FrameError("too many connections")
        self._last = number
        stream = self._streams[number] = Stream(self, number)
        self.spawn(self._accept(stream, int.from_bytes(payload, "big")))


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    """Join a connection of this machine and a stream until both ways have ended, or either breaks."""
    ways = [asyncio.create_task(_away(reader, stream)), asyncio.create_task(_home(stream, writer))]
    try:
        await asyncio.gather(*ways)
    except OSError:
        pass  # broken off: the other end is told below
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        stream.reset()
        with contextlib.suppress(OSError):
            writer.close()


async def _away(reader: asyncio.StreamReader, stream: Stream) -> None:
    while chunk := await reader.read(PIECE):
        await stream.write(chunk)
    stream.end()


async def _home(stream: Stream, writer: asyncio.StreamWriter) -> None:
    while chunk := await stream.read():
        writer.write(chunk)
        await writer.drain()
        stream.credit(len(chunk))
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
