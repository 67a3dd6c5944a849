"""Questions for names and their answers, and which address a name may stand for."""

import socket
import struct
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sandbox.network import names
from engine.sandbox.network.outside import may_stand_for


def asked(*labels: bytes, kind: int = 1, flags: int = 0x0100, count: int = 1) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels)
    return struct.pack("!HHHHHH", 7, flags, count, 0, 0, 0) + name + struct.pack("!BHH", 0, kind, 1)


def test_a_question_is_read_and_answered_with_what_was_asked() -> None:
    message = asked(b"PyPI", b"org")
    question = names.read(message + b"an additional record")
    assert question is not None and question.name == "pypi.org" and question.wants_address
    reply = names.answer(question, IPv4Address("198.18.0.1"))
    assert struct.unpack_from("!HHHHHH", reply) == (7, 0x8180, 1, 1, 0, 0)
    assert reply[12:].startswith(message[12:]) and reply.endswith(b"\0\4" + socket.inet_aton("198.18.0.1"))
    refused = names.refusal(question, names.NO_SUCH_NAME)
    assert struct.unpack_from("!HHHHHH", refused) == (7, 0x8183, 1, 0, 0, 0) and refused[12:] == message[12:]


@pytest.mark.parametrize("kind", [28, 16, 33, 65])
def test_other_records_than_addresses_are_not_there(kind: int) -> None:
    question = names.read(asked(b"a", b"test", kind=kind))
    assert question is not None
    assert struct.unpack_from("!HHHHHH", names.answer(question, IPv4Address(1))) == (7, 0x8180, 1, 0, 0, 0)


@pytest.mark.parametrize(
    "message", [b"", asked(b"a", flags=0x8180), asked(b"a", count=2), asked(b"a", flags=0x2800), asked(b"a")[:-1]]
)
def test_what_is_no_question_has_no_answer(message: bytes) -> None:
    assert names.read(message) is None


@given(st.binary(max_size=80))
def test_no_message_is_too_odd(message: bytes) -> None:
    question = names.read(asked(b"a")[:12] + message)
    assert question is None or (question.name.isprintable() and names.answer(question, IPv4Address(1)))


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("8.8.8.8", True, True),
        ("2606:4700::1111", True, True),
        ("10.0.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.100.100.200", False, True),
        ("198.18.0.1", False, True),
        ("fd00:ec2::254", False, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("64:ff9b::7f00:1", False, True),
        ("2002:7f00:1::", False, True),
        ("169.254.169.254", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("ff02::1", False, False),
    ],
)
def test_which_address_a_name_may_stand_for(address: str, public: bool, private: bool) -> None:
    assert may_stand_for(ip_address(address), private=False) is public
    assert may_stand_for(ip_address(address), private=True) is private
