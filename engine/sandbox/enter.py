"""Enters a sandbox and runs one thing there: a program of its own, started as `python -I -S enter.py REQUEST STATUS`.

REQUEST and STATUS are file descriptors. It enters the namespaces, forks, and the child joins the sandbox's control
groups, gives up every right, and executes the command. REQUEST holds one marshalled dictionary; STATUS receives
`exit CODE` once the command ended, or `error TEXT` when the sandbox could not be entered. The warm process (see
warm_server) imports it and enters by the same steps, with something else to do at their end.

Invariant: while it still has rights it opens nothing and executes nothing that lies inside the sandbox, so nothing
there can mislead it. Its few imports come first, because none can be done after entering; each costs every command
some milliseconds, so there is neither json nor signal.
"""

import ctypes
import marshal
import os
import resource
import sys
from _collections_abc import Callable  # loaded already, unlike `collections.abc`

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22
_SECCOMP_MODE_FILTER = 2
_KEYCTL_JOIN_SESSION_KEYRING = 1
_TIOCSCTTY = 0x540E
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL, _SIGPIPE, _SIGXFSZ, _SIG_DFL = 9, 13, 25, None
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def take(request_fd: int) -> dict:  # type: ignore[type-arg]
    """Read the request."""
    with os.fdopen(request_fd, "rb") as file:
        return marshal.load(file)  # type: ignore[no-any-return]  # noqa: S302


def serve(request: dict, status_fd: int, act: Callable[[dict], int]) -> None:  # type: ignore[type-arg]
    """Serve one request: `act` does the work in the child, with all rights given up, and returns its exit code.

    Always writes a status."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")
    try:
        status = f"exit {_run(request, act)}"
    except OSError as error:
        status = f"error {error}"
    os.write(status_fd, status.encode())


def _run(request: dict, act: Callable[[dict], int]) -> int:  # type: ignore[type-arg]
    # A lower value could be bought back by nobody but the host: the command is what the kernel should kill first.
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(str(request["oom_score_adj"]))
    for namespace in request["namespaces"]:
        _check(_libc.setns(namespace, 0), "setns")
    child = os.fork()
    if child == 0:
        become(request, act)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def become(request: dict, act: Callable[[dict], int]) -> None:  # type: ignore[type-arg]
    """In the child, which joins groups, gives up every right and acts: never returns."""
    code = _NOT_EXECUTABLE
    try:
        # Membership first, the new session second: until then the caller reaches this process by its group, from
        # then on by the control group; there is no moment at which it is out of reach.
        for group in request["groups"]:
            os.write(group, b"0")
        os.setsid()
        drop(request)
        os.chdir(request["cwd"])
        os.closerange(3, 1 << 16)
        if request.get("terminal"):  # so that its Ctrl-C reaches the command, and its end hangs the command up
            _check(_libc.ioctl(0, _TIOCSCTTY, 0), "TIOCSCTTY")
        code = act(request)
    except BaseException as error:
        # Nothing may pass: an exception would unwind into the helper's own code, inside the sandbox.
        _say(f"{error.filename or ''}: {error.strerror}" if isinstance(error, OSError) else repr(error))
    finally:
        os._exit(code)


def execute(request: dict) -> int:  # type: ignore[type-arg]
    """Replace this process; returns the exit code that says why it could not. `os.execvpe` would import modules."""
    for number in (_SIGPIPE, _SIGXFSZ):  # Python ignores them, and what is ignored stays so
        _libc.signal(number, _SIG_DFL)
    command, environment = request["command"], request["environment"]
    name, code, reason = command[0], _NOT_FOUND, "not found"
    folders = [""] if "/" in name else environment.get("PATH", "").split(":")
    for folder in folders:
        try:
            os.execve(f"{folder}/{name}" if folder else name, command, environment)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            code, reason = _NOT_EXECUTABLE, str(error.strerror)
    _say(f"{name}: {reason}")
    return code


def leave_keyring() -> None:
    """Let go of the engine's session keyring; on a kernel without keyrings there is none."""
    _libc.syscall(_KEYCTL[os.uname().machine], _KEYCTL_JOIN_SESSION_KEYRING, None)


def drop(request: dict) -> None:  # type: ignore[type-arg]
    """Give up capabilities, identity, keyrings and the way back; modest limits."""
    leave_keyring()
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    uid, gid = request["uid"], request["gid"]
    if os.getresuid() != (uid, uid, uid):  # what is forked from a warm process is that user already
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), nothing), "capset")
    # A change of identity clears it: from here on the command ends when this helper does.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    program = bytes.fromhex(request["seccomp"])
    buffer = ctypes.create_string_buffer(program, len(program))
    instructions = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(instructions), 0, 0), "seccomp")
    os.umask(0o022)


def _say(text: str) -> None:
    os.write(2, f"sandbox: {text}\n".encode(errors="surrogateescape"))


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[2]), False)
    serve(take(int(sys.argv[1])), int(sys.argv[2]), execute)
