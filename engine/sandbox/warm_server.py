"""The warm process: `python -I -B warm_server.py CONTROL UID FOLDER MODULE`, by the harness's interpreter (see warm).

It becomes user UID, imports MODULE from FOLDER, calls its `load()`, says that it is ready, and forks once per message
on CONTROL, a socket that only the engine has (see fork_server). The forked process enters the sandbox by the steps of
`enter`; its child, when all is given up, calls `MODULE.run(command, environment)`.

Invariant: it forks only while it has one thread and no descriptor but its own.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 8, 24
_SETPCAP, _SYS_CHROOT, _SYS_ADMIN = 8, 18, 21
_NEEDED = (_SETPCAP, _SYS_CHROOT, _SYS_ADMIN)
"""Capabilities: to enter namespaces, their file system among them, and to drop the rest for good."""
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


def main(control: int, uid: int, folder: str, module_name: str) -> None:
    """Serve until the engine closes its end of `control`."""
    enter, forks = (_import(str(Path(__file__).parent), name) for name in ("enter", "fork_server"))
    enter.leave_keyring()
    narrow_rights(uid)
    with _ended_by(control):
        module = _import(folder, module_name)
        module.load()

    def act(request: dict[str, Any]) -> int:
        time.tzset()  # the sandbox has a time zone of its own
        module.run(request["command"], request["environment"])
        return 0

    def check_alone(control: int, meant: Mapping[int, int]) -> None:
        problem = not_alone(control, meant)
        if problem:
            raise forks.Refusal(f"{problem} (start cold)")

    messages = socket.socket(fileno=control)
    check_alone(control, {})
    sys.stdout.flush()  # or each trial would write it again
    sys.stderr.flush()
    gc.collect()
    gc.freeze()
    forks.serve(messages, enter, act, check_alone)


@contextlib.contextmanager
def _ended_by(control: int) -> Iterator[None]:
    """Meanwhile this process ends with the engine: nothing but the socket's end can come, and its signal kills."""
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    yield
    fcntl.fcntl(control, fcntl.F_SETFL, flags)


def narrow_rights(uid: int) -> None:
    """Become the sandboxes' user, with the capabilities that entering needs and no way to others."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 0, 0, 0, 0))
    low, high = (sum(1 << (bit & 31) for bit in _NEEDED if bit >> 5 == word) for word in (0, 1))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)))
    for capability in range(64):
        if capability not in _NEEDED and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def not_alone(control: int, meant: Mapping[int, int]) -> str:
    """Why a fork would lose a thread or hand a descriptor on; empty where it would not."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return f"{threads} threads run after the imports; a fork has one"
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) > 2 and int(path.name) != control and int(path.name) not in meant:
            try:
                target = path.readlink()
            except FileNotFoundError:  # the listing's own
                continue
            return f"the imports hold a descriptor of {target}"
    return ""


def _import(folder: str, name: str) -> ModuleType:
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    code = 1
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
        code = 0
    except BaseException:
        traceback.print_exc()  # its last line is what the engine tells
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads of the imports may not hold the end back
