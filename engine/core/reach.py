"""Places beyond a sandbox, as a configuration names what may be reached: `pypi.org`, `pypi.org:80`,
`*.example.org:443`, `192.0.2.7:8080`, `[2001:db8::1]:443`, `10.1.0.0/16:3128`, `mirror.lan:80 private`.

Pure: no name is looked up here. Invariant: what no entry names is not reached; an address that a name stands for is
reached by that name alone, never because an entry holds the address as it is.
Refuses what would mean something else than it seems to: names that are numbers, an IPv6 address without brackets, a
network with bits beyond its mask, a whole top-level domain, the port of name servers, the addresses that names have
inside a sandbox.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SYNTHETIC = IPv4Network("198.18.0.0/15")
"""Names that may be reached have addresses of these inside a sandbox (kept for tests of networks: RFC 2544)."""
NAME_SERVER = 53
_HTTPS = 443
_LAST_PORT = 65535
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_NAME_BYTES = 253
_PRIVATE = "private"
_ITSELF = (IPv4Network("127.0.0.1/32"), IPv6Network("::1/128"))
FORMS = "write HOST, HOST:PORT, *.DOMAIN:PORT, ADDRESS:PORT, NETWORK/BITS:PORT or [IPv6]:PORT"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One entry."""

    name: str
    """In small letters; of `*.example.org` what follows the star; empty where addresses are named."""
    below: bool
    """Whether the names below `name` are meant, and not that name itself."""
    networks: tuple[Network, ...]
    port: int
    private: bool
    """Whether the name may stand for an address that is not public."""


def parse_place(text: str) -> Place:
    """One entry. Raises ValueError with what is wrong with it."""
    words = text.split()
    if not words or len(words) > 2 or words[1:] not in ([], [_PRIVATE]):
        raise ValueError("is no place: one word, and `private` behind it where a name may stand for a private address")
    host, port, bracketed = _host_and_port(words[0].lower())
    networks = _networks(host, bracketed=bracketed)
    private = len(words) > 1
    if networks:
        if private:
            raise ValueError("is an address, which is reached whatever it is: `private` is said of names")
        if any(network.version == SYNTHETIC.version and network.overlaps(SYNTHETIC) for network in networks):
            raise ValueError(f"overlaps {SYNTHETIC}, the addresses that names have inside a sandbox")
        return Place(name="", below=False, networks=networks, port=port, private=True)
    below = host.startswith("*.")
    name = host.removeprefix("*.")
    _check_name(name, below=below)
    return Place(name=name, below=below, networks=(), port=port, private=private)


class Reach:
    """All entries of one list."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Raises ValueError as `parse_place`."""
        self._places = [parse_place(entry) for entry in entries]

    @property
    def ports(self) -> tuple[int, ...]:
        """Each once, in order."""
        return tuple(sorted({place.port for place in self._places}))

    def knows(self, name: str) -> bool:
        """Whether a name may be reached at some port, and so has an address inside a sandbox."""
        return any(_is(place, name) for place in self._places)

    def named(self, name: str, port: int) -> Place | None:
        """The entry by which a name is reached at a port; one that allows a private address before others."""
        found = [place for place in self._places if place.port == port and _is(place, name)]
        return max(found, key=lambda place: place.private, default=None)

    def holds(self, address: Address, port: int) -> bool:
        """Whether an address may be reached as it is."""
        networks = (network for place in self._places if place.port == port for network in place.networks)
        return any(address in network for network in networks)


def is_address(text: str) -> bool:
    """Whether it is an address, of IPv6 also in brackets, and no name."""
    try:
        ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is(place: Place, name: str) -> bool:
    return name.endswith(f".{place.name}") if place.below else bool(place.name) and name == place.name


def _host_and_port(word: str) -> tuple[str, int, bool]:
    """(host, port, whether the host stood in brackets)."""
    bracketed = word.startswith("[")
    if bracketed:
        host, closing, rest = word[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            raise ValueError("has no form that is known")
        number, given = rest.removeprefix(":"), bool(rest)
    else:
        if word.count(":") > 1:
            raise ValueError("has no form that is known: an IPv6 address stands in brackets")
        host, colon, number = word.partition(":")
        given = bool(colon)
    if not given:
        return host, _HTTPS, bracketed
    port = int(number) if number.isascii() and number.isdecimal() else 0
    if not 0 < port <= _LAST_PORT:
        raise ValueError(f"has no port between 1 and {_LAST_PORT} behind its colon")
    if port == NAME_SERVER:
        raise ValueError("is the port of name servers, and no question for a name leaves this machine")
    return host, port, bracketed


def _networks(host: str, *, bracketed: bool) -> tuple[Network, ...]:
    """The addresses that are meant; none where it is a name."""
    if host == "localhost":
        return _ITSELF
    try:
        found: Network = ip_network(host, strict=False)
    except ValueError:
        if bracketed or "/" in host:
            raise ValueError("is no address and no network") from None
        return ()
    if bracketed != (found.version == 6):
        raise ValueError("stands in brackets and is no IPv6 address, or the other way round")
    if "/" in host and str(found.network_address) != host.partition("/")[0]:
        raise ValueError(f"has bits beyond its mask: {found} holds it")
    return (found,)


def _check_name(name: str, *, below: bool) -> None:
    labels = name.split(".")
    if len(name) > _NAME_BYTES or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is no name of a host; a star stands for what is below a domain, in front of it alone")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("ends in a number, and so is an address in disguise")
    if below and len(labels) < 2:
        raise ValueError("stands for every host of a top-level domain")
