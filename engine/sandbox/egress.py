"""What the processes of a sandbox tried to reach, though its network has no way out.

Nothing is let through or held back here. Every address is routed to the namespace's own loopback, where nothing
listens: an attempt fails at once, as it does without a route, and leaves a packet, which a socket of the engine's in
the namespace keeps until it is asked. Invariants: what goes over 127.0.0.0/8 and ::1 is not seen, but for questions to
a name server; the kernel's bound on the socket's memory bounds what is kept (about two hundred attempts).
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from engine.sandbox.packets import attempt, program

T = TypeVar("T")

_ALL_PROTOCOLS = 0x0003
_SOL_PACKET, _IGNORE_OUTGOING, _ATTACH_FILTER = 263, 23, 26
"""Of linux/if_packet.h and asm/socket.h; on loopback each packet would be seen leaving and arriving."""
_BACKLOG = 128
_PACKET_BYTES = 600
_NEW_NETWORK, _SET_FLAGS, _UP, _RUNNING = 0x40000000, 0x8914, 0x1, 0x40
_LOOPBACK = 1
"""Index of `lo` in every network namespace."""
_NEW_ROUTE, _ERROR = 24, 2
_REQUEST_ACK_CREATE_REPLACE = 0x1 | 0x4 | 0x400 | 0x100
_LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL = 255, 3, 254, 2
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.EACCES, errno.ENODEV)


class Egress:
    """Hears the attempts in one network namespace from the moment it is made."""

    def __init__(self, namespace: int | None) -> None:
        """`namespace`: a descriptor; None: the one that this process is in. Raises OSError where its routes or a packet
        socket cannot be had."""
        self._heard = _listen() if namespace is None else within(namespace, _listen)

    def fileno(self) -> int:
        """Readable when something was heard."""
        return self._heard.fileno()

    def attempts(self) -> list[str]:
        """What was tried since the last time, each once, in order (see `packets.attempt`)."""
        found: dict[str, None] = {}
        with suppress(BlockingIOError):
            while True:
                tried = attempt(self._heard.recv(_PACKET_BYTES))
                if tried:
                    found[tried] = None
        return list(found)

    def close(self) -> None:
        """Safe to call twice."""
        self._heard.close()


def within(namespace: int, work: Callable[[], T]) -> T:
    """Run `work` in another network namespace (a descriptor), by a thread of its own, which enters it and ends there.
    Raises the OSError that kept it from entering or ended `work`."""

    def entered() -> T:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return work()

    return _apart(entered)


def new_namespace() -> int:
    """A descriptor of a new network namespace, whose loopback is up and which goes with its last descriptor and
    process. Raises OSError."""

    def unshared() -> int:
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP | _RUNNING))
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _apart(unshared)


def _apart(work: Callable[[], T]) -> T:
    """By a thread that ends there: none may go on in another namespace."""
    made: list[T] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            made.append(work())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="sandbox-network")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def listener(port: int) -> socket.socket:
    """A listening socket on the loopback of the namespace that this is called in."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def _listen() -> socket.socket:
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    try:
        heard.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        steps = program()
        code = ctypes.create_string_buffer(steps, len(steps))
        heard.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", len(steps) // 8, ctypes.addressof(code)))
        heard.bind(("lo", _ALL_PROTOCOLS))
        heard.setblocking(False)
        _route_to_loopback(socket.AF_INET)
        try:
            _route_to_loopback(socket.AF_INET6)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
    except BaseException:
        heard.close()
        raise
    return heard


def _route_to_loopback(family: int) -> None:
    """`ip route replace local default dev lo`, by the kernel's own protocol (man 7 rtnetlink)."""
    route = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _LOCAL_TABLE, _BOOT, _HOST_SCOPE, _LOCAL, 0)
    route += struct.pack("=HHI", 8, 4, _LOOPBACK)  # RTA_OIF
    header = struct.pack("=IHHII", 16 + len(route), _NEW_ROUTE, _REQUEST_ACK_CREATE_REPLACE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(header + route)
        answer = kernel.recv(4096)
    kind, number = struct.unpack_from("=H", answer, 4)[0], -struct.unpack_from("=i", answer, 16)[0]
    if kind != _ERROR or number:
        raise OSError(number or errno.EPROTO, os.strerror(number or errno.EPROTO))
