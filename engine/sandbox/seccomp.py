"""The system-call filter of every command that runs in a sandbox.

A deny list in the manner of container engines: what needs a capability anyway is refused earlier, and what crosses
namespaces without one is closed: kernel keyrings (shared by all processes of a user), new user namespaces, and socket
families that network namespaces do not separate (vsock reaches a virtual machine's host).
Refuses machines other than x86-64 and AArch64.
"""

import errno
import platform
import struct
from collections.abc import Collection

_EPERM = errno.EPERM
_X86, _ARM = "x86_64", "aarch64"
_AUDIT_ARCH = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_SAME_ON_BOTH = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
}
_DENIED = {
    _X86: {
        "syslog": 103,
        "pivot_root": 155,
        "acct": 163,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "setns": 308,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    _ARM: {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "quotactl": 60,
        "acct": 89,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "syslog": 116,
        "reboot": 142,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "setns": 268,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
# Programs try these and fall back when the kernel does not know them. clone3 hides its flags from a filter.
_UNKNOWN = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
_CLONE = {_X86: 56, _ARM: 220}
_SOCKET = {_X86: 41, _ARM: 198}
_EXECUTE = {_X86: {"execve": 59, "execveat": 322}, _ARM: {"execve": 221, "execveat": 281}}
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: each bound to a file system or a network namespace."""

_LOAD, _EQUAL, _AND_SET, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST = 0, 4, 16
"""Offsets in struct seccomp_data; a first argument's low half comes first on both machines."""


def program(machine: str | None = None, allowed: Collection[str] = (), *, executes: bool = True) -> bytes:
    """The filter as an array of struct sock_filter (8 bytes each), without the refusal of calls that are `allowed`.

    `executes`: whether another program may be run. Raises KeyError for an unknown machine."""
    machine = machine or platform.machine()
    denied = _DENIED[machine] | _SAME_ON_BOTH | ({} if executes else _EXECUTE[machine])
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), _refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER)]
    # Numbers with this bit are the x32 ABI, a second door to the same calls.
    code += [(_AT_LEAST, 0, 1, 0x40000000), _refuse(errno.ENOSYS)]
    for name, number in denied.items():
        if name not in allowed:
            code += [(_EQUAL, 0, 1, number), _refuse(_EPERM)]
    for number in _UNKNOWN.values():
        code += [(_EQUAL, 0, 1, number), _refuse(errno.ENOSYS)]
    code += [(_EQUAL, 0, 4, _CLONE[machine]), (_LOAD, 0, 0, _FIRST), (_AND_SET, 0, 1, _NEW_NAMESPACES)]
    code += [_refuse(_EPERM), (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, len(_FAMILIES) + 2, _SOCKET[machine]), (_LOAD, 0, 0, _FIRST)]
    # One jump past the remaining comparisons and the refusal for each family that is known.
    code += [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    code += [_refuse(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def supported() -> bool:
    """Whether a filter is known for this machine."""
    return platform.machine() in _AUDIT_ARCH


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | error)
