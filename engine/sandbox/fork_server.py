"""Forks once per message of the engine's: what a warm process (warm_server) and the porter have in common.

A message brings descriptors, in this order: the request, where to tell the end, standard input, output and error, one
per namespace, one per control group. The forked process enters the sandbox by the steps of `enter`; its child, when all
is given up, does what `act` says. The answer is the forked process's pidfd, or one line that says why there is none.

Invariants: this process itself reads no request, so nothing of a trial is ever in the memory that the next one is
forked from; what it forked ends with it. Standard library only, and as little of it as can be: programs of their own
import it, by interpreters that are not the engine's.
"""

import ctypes
import os
import select
import socket
from _collections_abc import Callable  # loaded already, unlike `collections.abc`
from types import ModuleType

NAMESPACES = 6
_DESCRIPTORS_LIMIT = 64
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_SIGKILL = 9
_libc = ctypes.CDLL(None, use_errno=True)

Act = Callable[[dict], int]  # type: ignore[type-arg]
Check = Callable[[int, dict[int, int]], None]


class Refusal(Exception):
    """Why this process cannot be forked."""


def serve(messages: socket.socket, enter: ModuleType, act: Act, check: Check) -> None:
    """Say that all is ready, then serve until the engine closes its end. `check` is asked before each fork, with the
    socket's descriptor and those that are meant to be open; what it raises is the answer."""
    children: dict[int, int] = {}
    messages.send(b"ready")
    poll = select.poll()
    poll.register(messages.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                poll.unregister(descriptor)
                os.waitpid(children.pop(descriptor), 0)
                os.close(descriptor)
                continue
            message, descriptors, _, _ = socket.recv_fds(messages, 16, _DESCRIPTORS_LIMIT)
            if not message:
                return
            try:
                check(messages.fileno(), {**children, **dict.fromkeys(descriptors, 0)})
                pidfd = _fork(messages, children, descriptors, enter, act)
                poll.register(pidfd, select.POLLIN)
                socket.send_fds(messages, [b"forked"], [pidfd])
            except (OSError, Refusal) as error:
                messages.send(str(error).encode())
            finally:
                for each in descriptors:
                    os.close(each)


def _fork(
    messages: socket.socket, children: dict[int, int], descriptors: list[int], enter: ModuleType, act: Act
) -> int:
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _enter(parent, [messages.detach(), *children], descriptors, enter, act)
    pidfd = os.pidfd_open(child)
    children[pidfd] = child
    return pidfd


def _enter(parent: int, foreign: list[int], descriptors: list[int], enter: ModuleType, act: Act) -> None:
    """In the forked process, which stays outside, as the helper of a cold start does; never returns."""
    try:
        check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
        if os.getppid() != parent:  # it died before this process was tied to it
            os._exit(1)
        for descriptor in foreign:
            os.close(descriptor)
        request, status, *rest = descriptors
        for number in range(3):
            os.dup2(rest[number], number)
            os.close(rest[number])
        # A change of identity made /proc/self the host's; the trial's process closes itself again.
        check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
        given = enter.take(request)
        given["namespaces"], given["groups"] = rest[3 : 3 + NAMESPACES], rest[3 + NAMESPACES :]
        enter.serve(given, status, act)
    finally:
        os._exit(0)


def check(result: int) -> None:
    """Raise the OSError that a call of the C library ended with."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
