"""Packets on a sandbox's loopback: which the kernel keeps for the engine, and what one tells of an attempt to get out.

Pure: bytes in, text out. Invariant: a packet is a stranger's; what cannot be read tells nothing, and nothing raises.
"""

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

_TCP, _UDP = 6, 17
_DNS = 53
_SYN, _SYN_ACK = 0x02, 0x12
_DNS_HEADER = 12
_LABEL = 63
"""Longest part of a name, in bytes."""

_REJECT, _ACCEPT = "reject", "accept"
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _LOAD_HALF_BEYOND = 0x30, 0x28, 0x20, 0x48
_HEADER_LENGTH, _AND, _EQUAL, _RETURN = 0xB1, 0x54, 0x15, 0x06
_STEPS: tuple[tuple[str, int, int, str, str], ...] = (
    ("", _LOAD_BYTE, 0, "", ""),
    ("", _AND, 0xF0, "", ""),
    ("", _EQUAL, 0x40, "v4", "v6"),
    ("v4", _LOAD_BYTE, 16, "", ""),
    ("", _EQUAL, 127, "asks_v4", _ACCEPT),
    ("asks_v4", _LOAD_BYTE, 9, "", ""),
    ("", _EQUAL, _UDP, "port_v4", _REJECT),
    ("port_v4", _HEADER_LENGTH, 0, "", ""),
    ("", _LOAD_HALF_BEYOND, 2, "", ""),
    ("", _EQUAL, _DNS, _ACCEPT, _REJECT),
    ("v6", _EQUAL, 0x60, "own_0", _REJECT),
    ("own_0", _LOAD_WORD, 24, "", ""),
    ("", _EQUAL, 0, "own_1", _ACCEPT),
    ("own_1", _LOAD_WORD, 28, "", ""),
    ("", _EQUAL, 0, "own_2", _ACCEPT),
    ("own_2", _LOAD_WORD, 32, "", ""),
    ("", _EQUAL, 0, "own_3", _ACCEPT),
    ("own_3", _LOAD_WORD, 36, "", ""),
    ("", _EQUAL, 1, "asks_v6", _ACCEPT),
    ("asks_v6", _LOAD_BYTE, 6, "", ""),
    ("", _EQUAL, _UDP, "port_v6", _REJECT),
    ("port_v6", _LOAD_HALF, 42, "", ""),
    ("", _EQUAL, _DNS, _ACCEPT, _REJECT),
    (_ACCEPT, _RETURN, 0xFFFF, "", ""),
    (_REJECT, _RETURN, 0, "", ""),
)
"""Label, instruction of the classic BPF machine, its operand, where it goes on if equal and if not: what does not go to
this machine itself (127.0.0.0/8, ::1), and questions to a name server, wherever."""


def program() -> bytes:
    """The filter as an array of `struct sock_filter`."""
    places = {label: number for number, (label, *_) in enumerate(_STEPS) if label}
    written = b""
    for number, (_, instruction, operand, equal, other) in enumerate(_STEPS):
        jumps = [places[label] - number - 1 if label else 0 for label in (equal, other)]
        written += struct.pack("=HBBI", instruction, *jumps, operand)
    return written


def attempt(packet: bytes) -> str:
    """What a packet, from its IP header on, tried to reach: `pypi.org` (a question for a name), `10.0.0.1:443`,
    `10.0.0.1:123/udp`; empty when it tried nothing (answers, resets, this machine's own)."""
    try:
        protocol, address, rest = _opened(packet)
        if protocol == _TCP and rest[13] & _SYN_ACK == _SYN:
            return "" if address.is_loopback else _place(address, rest)
        if protocol == _UDP:
            if _port(rest) == _DNS:
                return _question(rest[8:]) or _place(address, rest)
            if _from(rest) == _DNS:  # an answer: nothing without rights can have this port
                return ""
            return "" if address.is_loopback else _place(address, rest) + "/udp"
    except (IndexError, ValueError, struct.error):
        pass
    return ""


def _opened(packet: bytes) -> tuple[int, IPv4Address | IPv6Address, bytes]:
    """(protocol, destination, what follows the header)."""
    if packet[0] >> 4 == 4:
        if struct.unpack_from("!H", packet, 6)[0] & 0x1FFF:  # a later fragment has no ports
            return 0, ip_address(packet[16:20]), b""
        return packet[9], ip_address(packet[16:20]), packet[(packet[0] & 0x0F) * 4 :]
    if packet[0] >> 4 == 6:
        return packet[6], ip_address(packet[24:40]), packet[40:]
    raise ValueError


def _port(rest: bytes) -> int:
    return int(struct.unpack_from("!H", rest, 2)[0])


def _from(rest: bytes) -> int:
    return int(struct.unpack_from("!H", rest)[0])


def _place(address: IPv4Address | IPv6Address, rest: bytes) -> str:
    shown = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"{shown}:{_port(rest)}"


def _question(message: bytes) -> str:
    """The first name that a DNS message asks for; empty when it asks for none."""
    if len(message) <= _DNS_HEADER:
        return ""
    flags, questions = struct.unpack_from("!HH", message, 2)
    if flags & 0x8000 or not questions:
        return ""
    labels, at = [], _DNS_HEADER
    while message[at]:
        size = message[at]
        if size > _LABEL or at + 1 + size >= len(message):
            return ""
        labels.append(message[at + 1 : at + 1 + size].decode("ascii", "backslashreplace").lower())
        at += 1 + size
    name = ".".join(labels)
    return name if name.isprintable() else name.encode("unicode_escape").decode()
