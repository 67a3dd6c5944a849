"""Connections to the world for the process that makes them (see sidecar): which addresses a name may stand for, and
sockets of which nothing outlives the process.

Invariant: an address is judged when it is about to be connected to, after the name was looked up for this very
connection, so nothing that a name server says later changes what was judged (DNS rebinding).
"""

import asyncio
import socket
import struct
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from engine.core.reach import Address

CONNECT_S = 30.0
_NAT64 = IPv6Network("64:ff9b::/96")
_CUT_SHORT = struct.pack("ii", 1, 0)


class NotPublic(Exception):
    """What a name stands for may not be reached by that name."""


def cut_short(connection: socket.socket) -> None:
    """When its process ends, what was not sent yet is dropped and the other side hears of a reset. Without it the
    kernel goes on sending what the process had written."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CUT_SHORT)


async def connect(name: str, port: int, *, private: bool, hosts: Mapping[str, Sequence[str]]) -> socket.socket:
    """A connection to a name. Raises NotPublic, which names the address, or OSError."""
    found = [ip_address(text) for text in hosts[name]] if name in hosts else await _look_up(name, port)
    refused: Address | None = None
    failure: OSError = OSError(f"{name} has no address")
    for address in found:
        if not may_stand_for(address, private=private):
            refused = refused or address
            continue
        try:
            return await connect_to(address, port)
        except OSError as error:
            failure = error
    if refused is not None:
        raise NotPublic(str(refused))
    raise failure


async def connect_to(address: Address, port: int) -> socket.socket:
    """A connection to an address. Raises OSError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        cut_short(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
    except BaseException:
        connection.close()
        raise
    return connection


def may_stand_for(address: Address, *, private: bool) -> bool:
    """Whether a name may stand for it: a public address of another machine; with `private` any that is not the link's
    own (where clouds tell a machine its secrets) and not for many."""
    plain = _plain(address)
    if plain.is_link_local or plain.is_multicast or plain.is_unspecified:
        return False
    return private or (plain.is_global and not _is_own(plain))


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
    if inner is None and address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or IPv6Address(int(address))  # without a zone


def _is_own(address: Address) -> bool:
    """Whether this machine has it: asked of the kernel's routes, nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((str(address), 9))
            return str(ip_address(asked.getsockname()[0])) == str(address)
        except OSError:
            return False


async def _look_up(name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in found))
