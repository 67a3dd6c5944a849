"""The way from a sandbox's loopback to the engine: process 1 of a container of its own, beside the task's.

It shares nothing with the task but the network, which has a loopback and no more. Its standard input and output are one
stream to the engine, over podman's API (see streams): each connection that it takes on a port that the engine asked for
is carried there. It also hears what is tried in vain (see egress). It ends when that stream does, or when nothing was
said on it for a lease's time: so a sandbox ends with the engine that made it, whatever ends that.
Invariant: it takes nothing from the agent but bytes of connections, and has no rights left when it takes the first:
another user than the agent's, without a capability.
"""

import asyncio
import contextlib
import os
import socket
import struct
import sys
from typing import BinaryIO

from engine.sandbox.egress import Egress
from engine.sandbox.podman_pool.inpod.main import LIFE
from engine.sandbox.remote.within.processes import close_to_neighbours
from engine.sandbox.remote.within.streams import PIECE, FrameError, Kind, Mux, carry

NOBODY = 65534
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


def main(lease_s: float) -> None:
    heard = Egress(None)
    life = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    life.bind(LIFE)
    life.listen(_BACKLOG)
    life.setblocking(False)
    give_up_rights()
    asyncio.run(Relay(heard, life, lease_s).run())


def give_up_rights() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)  # with that the kernel takes all capabilities
    close_to_neighbours()


class Relay:
    def __init__(self, heard: Egress, life: socket.socket, lease_s: float) -> None:
        self._heard, self._life, self._lease_s = heard, life, lease_s
        self._mux = Mux(self._send, self._serve, None)
        self._servers: dict[int, asyncio.Server] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._root: list[socket.socket] = []

    async def run(self) -> None:
        """Return when the engine is gone."""
        loop = asyncio.get_running_loop()
        reader, self._writer = await _standard(sys.stdin.buffer, sys.stdout.buffer)
        loop.add_reader(self._heard.fileno(), self._tell)
        loop.add_reader(self._life.fileno(), self._welcome)
        sending = asyncio.create_task(self._mux.run())
        try:
            with contextlib.suppress(TimeoutError, FrameError, OSError):
                while chunk := await asyncio.wait_for(reader.read(PIECE), self._lease_s):
                    self._mux.take(chunk)
        finally:
            sending.cancel()
            os._exit(0)  # whatever is open goes with it

    async def _send(self, batch: bytes) -> None:
        assert self._writer is not None
        self._writer.write(batch)
        await self._writer.drain()

    def _serve(self, kind: Kind, number: int, _payload: bytes) -> None:
        if kind is Kind.LISTEN:
            self._mux.spawn(self._listen(number))
        elif kind is Kind.PING:
            self._tell()
            self._mux.put(Kind.PONG, number)

    async def _listen(self, port: int) -> None:
        try:
            self._servers[port] = await asyncio.start_server(
                lambda reader, writer: self._carry(port, reader, writer), "127.0.0.1", port, backlog=_BACKLOG
            )
        except OSError as error:
            self._mux.put(Kind.ANSWER, port, (error.strerror or "refused").encode())
        else:
            self._mux.put(Kind.ANSWER, port)

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = self._mux.open(port)
        if stream is None:
            writer.close()
            return
        await carry(reader, writer, stream)

    def _tell(self) -> None:
        for tried in self._heard.attempts():
            if not self._mux.full:  # an agent that tries without end is heard well enough
                self._mux.put(Kind.HEARD, 0, tried.encode(errors="replace")[:PIECE])

    def _welcome(self) -> None:
        """Keep the connection of the task's process 1; the agent's would only take room."""
        with contextlib.suppress(OSError):
            taken, _ = self._life.accept()
            _, uid, _ = _CREDENTIALS.unpack(taken.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if uid == 0:
                self._root.append(taken)
            else:
                taken.close()


async def _standard(given: BinaryIO, told: BinaryIO) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=PIECE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), given)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, told)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
