"""Sockets inside a sandbox's network namespace for the process that serves them (see sidecar).

Opened by a thread that has entered the namespace (`egress.within`). Invariant: either all are opened or none. Another
socket of root's may listen on the same port at one address (the model's, on 127.0.0.1): the kernel prefers it there,
because it is the more exact one.
"""

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from engine.core.reach import NAME_SERVER

_BACKLOG = 512
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))  # noqa: S104


def open_all(ports: Sequence[int]) -> dict[str, list[socket.socket]]:
    """`tcp`: listeners on these ports of every address; `names_tcp` and `names_udp`: where names are asked for."""
    with ExitStack() as undo:
        made: dict[str, list[socket.socket]] = {"tcp": [], "names_tcp": [], "names_udp": []}
        for family, everywhere in _EVERYWHERE:
            try:
                made["names_udp"].append(undo.enter_context(_datagrams(family, everywhere)))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno in _NO_IPV6:
                    continue
                raise
            made["names_tcp"].append(undo.enter_context(listener(family, everywhere, NAME_SERVER, shared=False)))
            made["tcp"] += [undo.enter_context(listener(family, everywhere, port, shared=True)) for port in ports]
        undo.pop_all()
    return made


def listener(family: socket.AddressFamily, address: str, port: int, *, shared: bool) -> socket.socket:
    """A TCP listener that does not block; `shared`: others of root's may listen on its port. Raises OSError."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def _datagrams(family: socket.AddressFamily, address: str) -> socket.socket:
    """Tells which address was asked, and may answer from it, though the namespace has none but its loopback's."""
    asked = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            for option in (socket.IPV6_V6ONLY, _IPV6_RECVPKTINFO, _IPV6_FREEBIND):
                asked.setsockopt(socket.IPPROTO_IPV6, option, 1)
        else:
            asked.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asked.bind((address, NAME_SERVER))
    except OSError:
        asked.close()
        raise
    return asked
