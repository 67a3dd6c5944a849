"""The system-call filter, run by a small interpreter: what each machine allows and refuses."""

import errno
import struct

import pytest

from engine.sandbox import seccomp

ALLOW = "allow"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(
    machine: str, number: int, first: int = 0, architecture: int | None = None, allowed: tuple[str, ...] = ()
) -> str:
    """What the filter answers to one call: `allow` or the error's name."""
    architecture = ARCHITECTURES[machine] if architecture is None else architecture
    data = struct.pack("<IIQQ", number, architecture, 0, first)
    program = list(struct.iter_unpack("<HBBI", seccomp.program(machine, allowed)))
    accumulator = position = 0
    while True:
        code, yes, no, k = program[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif code == 0x06:
            return ALLOW if k == 0x7FFF0000 else errno.errorcode[k & 0xFFFF]
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            position += yes if holds else no


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        ("x86_64", {"read": 0, "execve": 59, "ptrace": 101, "close_range": 436, "openat2": 437, "setpgid": 109}),
        ("aarch64", {"read": 63, "execve": 221, "ptrace": 117, "close_range": 436, "openat2": 437, "setpgid": 154}),
    ],
)
def test_ordinary_calls_pass(machine: str, calls: dict[str, int]) -> None:
    assert {name: decide(machine, number) for name, number in calls.items()} == dict.fromkeys(calls, ALLOW)


@pytest.mark.parametrize(
    ("machine", "calls"),
    [
        ("x86_64", {"mount": 165, "unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321, "open_tree": 428}),
        ("aarch64", {"mount": 40, "unshare": 97, "setns": 268, "keyctl": 219, "bpf": 280, "open_tree": 428}),
    ],
)
def test_dangerous_calls_are_refused(machine: str, calls: dict[str, int]) -> None:
    assert {name: decide(machine, number) for name, number in calls.items()} == dict.fromkeys(calls, "EPERM")


@pytest.mark.parametrize(("machine", "setns", "mount"), [("x86_64", 308, 165), ("aarch64", 268, 40)])
def test_what_is_allowed_is_no_more_than_was_asked_for(machine: str, setns: int, mount: int) -> None:
    assert decide(machine, setns, allowed=("setns",)) == ALLOW
    assert decide(machine, mount, allowed=("setns",)) == "EPERM"


@pytest.mark.parametrize(("machine", "clone", "socket"), [("x86_64", 56, 41), ("aarch64", 220, 198)])
def test_calls_are_judged_by_their_argument(machine: str, clone: int, socket: int) -> None:
    assert decide(machine, clone, 0x01200011) == ALLOW  # fork
    assert decide(machine, clone, 0x003D0F00) == ALLOW  # thread
    assert decide(machine, clone, 0x10000011) == "EPERM"  # new user namespace
    assert decide(machine, 435) == "ENOSYS"  # clone3
    families = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
    assert {name: decide(machine, socket, family) for name, family in families.items()} == dict.fromkeys(
        families, ALLOW
    )
    assert {decide(machine, socket, family) for family in (0, 3, 17, 38, 40)} == {"EAFNOSUPPORT"}


def test_other_doors_to_the_same_calls_are_closed() -> None:
    assert decide("x86_64", 0x40000000 | 165) == "ENOSYS"
    assert decide("x86_64", 21, architecture=0x40000003) == "ENOSYS"


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(KeyError):
        seccomp.program("sparc")
