"""What a packet tells of an attempt to get out, and a network namespace whose attempts are heard."""

import os
import shutil
import socket
import struct
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sandbox.egress import Egress, within
from engine.sandbox.packets import attempt

SYN, ACK, RESET = 0x02, 0x10, 0x04
TCP, UDP, ICMP = 6, 17, 1


def ip(target: str, protocol: int, rest: bytes) -> bytes:
    if ":" in target:
        address = socket.inet_pton(socket.AF_INET6, target)
        return struct.pack("!IHBB", 6 << 28, len(rest), protocol, 64) + bytes(16) + address + rest
    options = bytes(4)  # so that the header's length matters
    head = struct.pack("!BBHHHBBH", 0x46, 0, 24 + len(rest), 0, 0, 64, protocol, 0)
    return head + bytes(4) + socket.inet_aton(target) + options + rest


def tcp(target: str, port: int, flags: int = SYN) -> bytes:
    return ip(target, TCP, struct.pack("!HHIIBBHHH", 40000, port, 0, 0, 0x50, flags, 0, 0, 0))


def udp(target: str, port: int, text: bytes = b"") -> bytes:
    return ip(target, UDP, struct.pack("!HHHH", 40000, port, 8 + len(text), 0) + text)


def question(*labels: bytes, flags: int = 0x0100, count: int = 1) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels)
    return struct.pack("!HHHHHH", 7, flags, count, 0, 0, 0) + name + b"\0\0\1\0\1"


@pytest.mark.parametrize(
    ("packet", "told"),
    [
        (tcp("192.0.2.1", 443), "192.0.2.1:443"),
        (tcp("2001:db8::1", 80), "[2001:db8::1]:80"),
        (tcp("127.0.0.1", 8080), ""),
        (tcp("::1", 8080), ""),
        (tcp("192.0.2.1", 443, SYN | ACK), ""),
        (tcp("192.0.2.1", 443, RESET), ""),
        (udp("192.0.2.1", 123), "192.0.2.1:123/udp"),
        (udp("127.0.0.1", 123), ""),
        (udp("127.0.0.53", 53, question(b"PyPI", b"org")), "pypi.org"),
        (udp("::1", 53, question(b"github", b"com")), "github.com"),
        (udp("192.0.2.1", 53, question(b"pypi", b"org", flags=0x8180)), "192.0.2.1:53"),  # an answer
        (udp("192.0.2.1", 53, question(b"pypi", b"org", count=0)), "192.0.2.1:53"),
        (udp("192.0.2.1", 53, question(b"x" * 64)), "192.0.2.1:53"),
        (udp("127.0.0.1", 53, question(b"a\nb", b"\xff")), "a\\nb.\\\\xff"),
        (ip("192.0.2.1", ICMP, bytes(8)), ""),
        (b"", ""),
        (b"\x45", ""),
        (tcp("192.0.2.1", 443)[:30], ""),
        (udp("192.0.2.1", 53, question(b"pypi", b"org")[:14]), "192.0.2.1:53"),
        (udp("192.0.2.1", 53, b"x"), "192.0.2.1:53"),
    ],
)
def test_what_a_packet_tells(packet: bytes, told: str) -> None:
    assert attempt(packet) == told


@given(st.binary(max_size=80), st.sampled_from([tcp("10.0.0.1", 1), udp("10.0.0.1", 53, question(b"a", b"b")), b""]))
def test_no_packet_is_too_odd(noise: bytes, packet: bytes) -> None:
    told = attempt(packet[: len(noise)] + noise)
    assert told.isprintable() and told.isascii()


# ---------------------------------------------------------------- a namespace

_TRIES = """
    import socket
    def reach(family, kind, address):
        with socket.socket(family, kind) as tried:
            tried.settimeout(5)
            try:
                tried.connect(address)
                tried.send(b"x")
            except OSError as error:
                print(type(error).__name__)
    reach(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 8080))
    for _ in range(3):
        reach(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.7", 443))
    reach(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::7", 443))
    reach(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.7", 123))
"""


@pytest.fixture
def namespace() -> Iterator[int]:
    """A descriptor of a network namespace that has nothing but loopback."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, unshare and ip")
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline() == "ready\n"
        made = os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY)
        yield made
        os.close(made)
        holder.stdin.close()


def tries(namespace: int) -> str:
    command = ["nsenter", f"--net=/proc/self/fd/{namespace}", "python3", "-c", textwrap.dedent(_TRIES)]
    done = subprocess.run(command, pass_fds=[namespace], capture_output=True, text=True, check=True)
    return done.stdout


def test_attempts_fail_at_once_and_are_heard_once(namespace: int) -> None:
    egress = Egress(namespace)
    assert tries(namespace).split() == ["ConnectionRefusedError"] * 5
    assert egress.attempts() == ["192.0.2.7:443", "[2001:db8::7]:443", "192.0.2.7:123/udp"]
    assert egress.attempts() == []
    egress.close()
    egress.close()


def test_this_machines_own_network_is_not_touched(namespace: int) -> None:
    before = Path("/proc/net/route").read_text()
    Egress(namespace).close()
    assert Path("/proc/net/route").read_text() == before
    assert within(namespace, lambda: [name for _, name in socket.if_nameindex()]) == ["lo"]


def test_a_flood_is_bounded(namespace: int) -> None:
    egress = Egress(namespace)
    flood = "import socket as s; u = s.socket(2, 2); [u.sendto(b'x' * 500, ('192.0.2.1', n)) for n in range(1, 9000)]"
    subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{namespace}", "python3", "-c", flood], pass_fds=[namespace], check=True
    )
    heard = egress.attempts()
    assert heard[0] == "192.0.2.1:1/udp" and 20 < len(heard) < 2000
    egress.close()
