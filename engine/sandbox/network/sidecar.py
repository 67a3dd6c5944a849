"""The process through which a sandbox reaches what a list allows, in one phase and no other: its life is the phase.

    python -I -S -c … sidecar.main(REQUEST, CONTROL)      both file descriptors

It starts with sockets that the engine opened inside the sandbox's network namespace, gives up every right before it
reads the first byte from any of them, and itself lives in the machine's own network. Every address is routed to the
sandbox's own loopback, so a listener on all addresses takes connections to any, and the socket tells which was meant.
Names have addresses of their own in there (`reach.SYNTHETIC`), and are looked up out here for each connection.

CONTROL is a socket of whole messages. From here: `ready`; `name` (a name has got an address); `denied`; and when the
engine has said `end`, `ended` with what was reached. The engine's death, and any end of this process, cut everything:
listeners, connections, and what was not sent yet.

Invariants: nothing is reached that the list does not name; what is denied is told, but for connections to 127.0.0.0/8
and ::1, which are no attempt to get out. Refuses to run with any right left.
"""

import asyncio
import contextlib
import encodings.idna  # noqa: F401
import fcntl
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, ip_address
from typing import Any

from engine.core.reach import SYNTHETIC, Address, Reach
from engine.sandbox import enter
from engine.sandbox.network import names
from engine.sandbox.network.outside import NotPublic, connect, connect_to, cut_short

NOBODY = 65534
_PIECE = 1 << 16
_MESSAGE = 4096
_CONNECTIONS = 1000
_DESCRIPTORS = 4096
_NAMES = 10_000
"""Names that may be known in one sandbox: below a star a program could ask for ever."""
_TOLD = 1000
"""Distinct attempts that are told of."""
_PLACES = 150
"""Places whose connections are counted apart: all go into one message."""
_DNS_S = 10.0
_FLUSH_S, _LOOK_S = 30.0, 0.01
_IP_PKTINFO, _IPV6_PKTINFO = 8, 50
_SIOCOUTQ = 0x5411


class Sidecar:
    """Serves one phase of one sandbox."""

    def __init__(self, wanted: dict[str, Any], control: socket.socket) -> None:
        self._reach = Reach(wanted["reach"])
        self._hosts: dict[str, list[str]] = wanted["hosts"]
        self._sockets: dict[str, list[int]] = wanted["sockets"]
        self._control = control
        self._names: dict[str, IPv4Address] = {name: IPv4Address(text) for name, text in wanted["names"].items()}
        self._known = {address: name for name, address in self._names.items()}
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._reached: dict[str, list[int]] = {}
        """Place → connections, bytes sent, bytes received."""

    async def serve(self) -> None:
        """Until the engine says that the phase is over, or is gone itself."""
        loop = asyncio.get_running_loop()
        for serve, kind in ((self._relay, "tcp"), (self._answer_stream, "names_tcp")):
            for descriptor in self._sockets[kind]:
                self._start(self._accept(_socket(descriptor), serve))
        for descriptor in self._sockets["names_udp"]:
            asked = _socket(descriptor)
            loop.add_reader(asked, self._answer_datagrams, asked)
        self._tell({"ready": os.getpid()})
        with contextlib.suppress(OSError):
            if await loop.sock_recv(self._control, _MESSAGE):
                self._control.setblocking(True)
                self._tell({"ended": self._reached})

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, event: dict[str, object]) -> bool:
        """Whether it was told: an engine that does not listen is not waited for."""
        try:
            self._control.send(json.dumps(event).encode())
        except BlockingIOError:
            return False
        return True

    def _deny(self, place: str) -> None:
        if place not in self._told and len(self._told) < _TOLD and self._tell({"denied": place}):
            self._told.add(place)

    # ------------------------------------------------------------ connections

    async def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                taken, _ = await loop.sock_accept(listener)
            except OSError:  # it was gone before it was taken
                self._room.release()
                await asyncio.sleep(0.01)
                continue
            self._start(self._guard(serve, taken))

    async def _guard(self, serve: Callable[[socket.socket], Awaitable[None]], taken: socket.socket) -> None:
        try:
            with taken:
                cut_short(taken)
                await serve(taken)
        except (OSError, ExceptionGroup):
            pass
        finally:
            self._room.release()

    async def _relay(self, inside: socket.socket) -> None:
        address, port = _meant(inside)
        outside = await self._reached_for(address, port)
        if outside is None:
            return
        name = self._known.get(address) if isinstance(address, IPv4Address) else None
        tally = self._tally(_place(name or address, port))
        with outside:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(inside, outside, tally, 1))
                both.create_task(_pump(outside, inside, tally, 2))
            await _flushed(inside, outside)

    def _tally(self, place: str) -> list[int]:
        if place not in self._reached and len(self._reached) >= _PLACES:
            place = "others"
        tally = self._reached.setdefault(place, [0, 0, 0])
        tally[0] += 1
        return tally

    async def _reached_for(self, address: Address, port: int) -> socket.socket | None:
        """A connection to what is meant; None where it is denied."""
        if address in SYNTHETIC:
            name = self._known.get(IPv4Address(int(address)), "")
            place = self._reach.named(name, port)
            if place is None:
                self._deny(_place(name or address, port))
                return None
            try:
                return await connect(name, port, private=place.private, hosts=self._hosts)
            except NotPublic as refused:
                self._deny(f"{_place(name, port)} at {refused}")
                return None
        if self._reach.holds(address, port):
            return await connect_to(address, port)
        if not address.is_loopback:
            self._deny(_place(address, port))
        return None

    # ------------------------------------------------------------ names

    def _answer_datagrams(self, asked: socket.socket) -> None:
        """All that wait, each from the address that was asked."""
        with contextlib.suppress(OSError):
            while True:
                message, beside, _, sender = asked.recvmsg(_MESSAGE, 256)
                reply = self._answer(message)
                if reply is None:
                    continue
                with contextlib.suppress(OSError):
                    asked.sendmsg([reply], _from(beside), 0, sender)

    async def _answer_stream(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_DNS_S):
            while True:
                (size,) = struct.unpack("!H", await _exactly(taken, 2))
                reply = self._answer(await _exactly(taken, size))
                if reply is None:
                    return
                await loop.sock_sendall(taken, struct.pack("!H", len(reply)) + reply)

    def _answer(self, message: bytes) -> bytes | None:
        question = names.read(message)
        if question is None:
            return None
        if not self._reach.knows(question.name):
            self._deny(question.name)
            return names.refusal(question, names.NO_SUCH_NAME)
        address = self._address(question.name)
        return names.refusal(question, names.NOT_NOW) if address is None else names.answer(question, address)

    def _address(self, name: str) -> IPv4Address | None:
        """The one by which a name is known inside, also in later phases: its programs remember what they were told."""
        if name in self._names:
            return self._names[name]
        address = SYNTHETIC[len(self._names) + 1]
        if len(self._names) >= _NAMES or not self._tell({"name": name, "address": str(address)}):
            return None
        self._names[name], self._known[address] = address, name
        return address


def _socket(descriptor: int) -> socket.socket:
    made = socket.socket(fileno=descriptor)
    made.setblocking(False)
    return made


def _meant(inside: socket.socket) -> tuple[Address, int]:
    address, port = inside.getsockname()[:2]
    return ip_address(address.partition("%")[0]), port


def _place(host: object, port: int) -> str:
    text = str(host)
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


async def _pump(source: socket.socket, sink: socket.socket, tally: list[int], column: int) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, _PIECE):
        await loop.sock_sendall(sink, piece)
        tally[column] += len(piece)
    sink.shutdown(socket.SHUT_WR)


async def _flushed(*connections: socket.socket) -> None:
    """Wait until both sides have acknowledged all: closing drops what they have not."""
    for _ in range(int(_FLUSH_S / _LOOK_S)):
        if not any(_unsent(one) for one in connections):
            return
        await asyncio.sleep(_LOOK_S)


def _unsent(connection: socket.socket) -> bool:
    return bool(struct.unpack("i", fcntl.ioctl(connection, _SIOCOUTQ, bytes(4)))[0])


async def _exactly(taken: socket.socket, size: int) -> bytes:
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < size:
        piece = await loop.sock_recv(taken, size - len(found))
        if not piece:
            raise ConnectionResetError
        found += piece
    return found


def _from(beside: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """What makes the kernel send an answer from the address that was asked."""
    for level, kind, data in beside:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            index, _, meant = struct.unpack("=I4s4s", data)
            return [(level, kind, struct.pack("=I4s4s", index, meant, bytes(4)))]
        if level == socket.IPPROTO_IPV6 and kind == _IPV6_PKTINFO:
            return [(level, kind, data)]
    return []


def _rehearse() -> None:
    """Load what is loaded when it is first needed: afterwards the interpreter's files may be closed to this process."""

    async def once() -> None:
        await asyncio.get_running_loop().getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)

    with contextlib.suppress(OSError):
        asyncio.run(once())


def confine(wanted: dict[str, Any]) -> None:
    """Give up every right, as a sandbox's commands do, and the right to execute anything beside."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    descriptors = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": descriptors}
    enter.drop({"uid": NOBODY, "gid": NOBODY, "limits": limits, "seccomp": wanted["seccomp"]})
    if os.getppid() != wanted["parent"]:  # it died before its death could have ended this process
        sys.exit("the engine is gone")


def main(request: int, control: int) -> None:
    """Serve until the end of the phase."""
    _rehearse()
    with os.fdopen(request, "rb") as file:
        wanted = json.load(file)
    told = socket.socket(fileno=control)
    confine(wanted)
    told.setblocking(False)

    async def serve() -> None:
        await Sidecar(wanted, told).serve()
        os._exit(0)  # whatever is still open is cut by it

    asyncio.run(serve())
