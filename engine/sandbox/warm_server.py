"""The warm process: `python -I -B warm_server.py CONTROL UID FOLDER MODULE`, by the harness's interpreter (see warm).

It becomes user UID, imports MODULE from FOLDER, calls its `load()`, says that it is ready, and forks once per message
on CONTROL, a socket that only the engine has. A message brings descriptors, in this order: the request, where to tell
the end, standard input, output and error, one per namespace, one per control group. The forked process enters the
sandbox by the steps of `enter`; its child, when all is given up, calls `MODULE.run(command, environment)`.

Invariants: this process itself reads no request, so nothing of a trial is ever in the memory that the next one is
forked from; it forks only while it has one thread and no descriptor but its own; what it forked ends with it.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP = 1, 4, 8, 24
_SIGKILL = 9
_SETPCAP, _SYS_CHROOT, _SYS_ADMIN = 8, 18, 21
_NEEDED = (_SETPCAP, _SYS_CHROOT, _SYS_ADMIN)
"""Capabilities: to enter namespaces, their file system among them, and to drop the rest for good."""
_CAPABILITY_VERSION_3 = 0x20080522
NAMESPACES = 6
_DESCRIPTORS_LIMIT = 64
_libc = ctypes.CDLL(None, use_errno=True)


class Refusal(Exception):
    """Why this process cannot be forked."""


def main(control: int, uid: int, folder: str, module_name: str) -> None:
    """Serve until the engine closes its end of `control`."""
    enter = _import(str(Path(__file__).parent), "enter")
    enter.leave_keyring()
    narrow_rights(uid)
    with _ended_by(control):
        module = _import(folder, module_name)
        module.load()
    messages = socket.socket(fileno=control)
    children: dict[int, int] = {}
    check_alone(control, children)
    sys.stdout.flush()  # or each trial would write it again
    sys.stderr.flush()
    gc.collect()
    gc.freeze()
    messages.send(b"ready")
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                poll.unregister(descriptor)
                os.waitpid(children.pop(descriptor), 0)
                os.close(descriptor)
            elif not _answer(messages, children, poll, enter, module):
                return


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


def check_alone(control: int, children: dict[int, int]) -> None:
    """Raise Refusal where a fork would lose a thread or hand a descriptor on."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise Refusal(f"{threads} threads run after the imports; a fork has one (start cold)")
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) > 2 and int(path.name) != control and int(path.name) not in children:
            try:
                target = path.readlink()
            except FileNotFoundError:  # the listing's own
                continue
            raise Refusal(f"the imports hold a descriptor of {target} (start cold)")


def _answer(
    messages: socket.socket, children: dict[int, int], poll: select.poll, enter: ModuleType, module: ModuleType
) -> bool:
    """Serve one message; False at the end of them."""
    message, descriptors, _, _ = socket.recv_fds(messages, 16, _DESCRIPTORS_LIMIT)
    if not message:
        return False
    try:
        check_alone(messages.fileno(), {**children, **dict.fromkeys(descriptors, 0)})
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _enter(parent, [messages.detach(), *children], descriptors, enter, module)
        pidfd = os.pidfd_open(child)
        children[pidfd] = child
        poll.register(pidfd, select.POLLIN)
        socket.send_fds(messages, [b"forked"], [pidfd])
    except (OSError, Refusal) as error:
        messages.send(str(error).encode())
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def _enter(parent: int, foreign: list[int], descriptors: list[int], enter: ModuleType, module: ModuleType) -> NoReturn:
    """In the forked process, which stays outside, as the helper of a cold start does."""
    try:
        _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
        if os.getppid() != parent:  # it died before this process was tied to it
            os._exit(1)
        for descriptor in foreign:
            os.close(descriptor)
        request, status, *rest = descriptors
        for number in range(3):
            os.dup2(rest[number], number)
            os.close(rest[number])
        # A change of identity made /proc/self the host's; the trial's process closes itself again.
        _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
        given = enter.take(request)
        given["namespaces"], given["groups"] = rest[3 : 3 + NAMESPACES], rest[3 + NAMESPACES :]

        def act(request: dict[str, Any]) -> int:
            time.tzset()  # the sandbox has a time zone of its own
            module.run(request["command"], request["environment"])
            return 0

        enter.serve(given, status, act)
    finally:
        os._exit(0)


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
