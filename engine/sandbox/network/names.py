"""Questions for names, as a sandbox's programs ask them, and answers to them (RFC 1035): bytes in, bytes out.

Pure. Invariant: a message is a stranger's; what cannot be read has no answer, and nothing raises. An answer holds one
address at most, so it always fits into a datagram.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

NOT_READABLE, NO_SUCH_NAME, NOT_NOW = 1, 3, 2
_HEADER = struct.Struct("!HHHHHH")
_ANSWER, _RECURSE, _CAN_RECURSE = 0x8000, 0x0100, 0x0080
_OPERATION = 0x7800
_ADDRESS, _ANY, _INTERNET = 1, 255, 1
_TTL_S = 30
_LABEL = 63
_POINTER_TO_QUESTION = 0xC00C


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question."""

    number: int
    flags: int
    name: str
    """In small letters, without the last dot."""
    wants_address: bool
    """Whether an IPv4 address answers it; other kinds of records are never given."""
    raw: bytes
    """As it stood."""


def read(message: bytes) -> Question | None:
    """The only question of a message; None where there is none."""
    try:
        number, flags, questions, _, _, _ = _HEADER.unpack_from(message)
        if flags & (_ANSWER | _OPERATION) or questions != 1:
            return None
        labels, at = [], _HEADER.size
        while size := message[at]:
            if size > _LABEL or at + 1 + size >= len(message):
                return None
            labels.append(message[at + 1 : at + 1 + size].decode("ascii", "backslashreplace").lower())
            at += 1 + size
        kind, family = struct.unpack_from("!HH", message, at + 1)
    except (IndexError, struct.error):
        return None
    name = ".".join(labels)
    return Question(
        number=number,
        flags=flags,
        name=name if name.isprintable() else name.encode("unicode_escape").decode(),
        wants_address=kind in (_ADDRESS, _ANY) and family == _INTERNET,
        raw=message[_HEADER.size : at + 5],
    )


def answer(question: Question, address: IPv4Address | None) -> bytes:
    """The name is known: its address, or, where another kind of record is wanted, that there is none."""
    given = address if question.wants_address else None
    head = _HEADER.pack(question.number, _flags(question), 1, 1 if given else 0, 0, 0)
    if given is None:
        return head + question.raw
    return head + question.raw + struct.pack("!HHHIH", _POINTER_TO_QUESTION, 1, _INTERNET, _TTL_S, 4) + given.packed


def refusal(question: Question, reason: int) -> bytes:
    """Why there is no answer."""
    return _HEADER.pack(question.number, _flags(question) | reason, 1, 0, 0, 0) + question.raw


def _flags(question: Question) -> int:
    return _ANSWER | _CAN_RECURSE | (question.flags & _RECURSE)
