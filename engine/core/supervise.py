"""Runs one command so that nothing of it outlives its owner: `supervise.py GRACE_S OWNER FOLDER COMMAND…`.

Standard library only, run as a script. Invariant: when this process ends, so has every descendant of the command, also
after the owner's `kill -9`: the kernel reports the owner's death, orphans are adopted here (sub-reaper), and the tree
is killed until it is empty; then FOLDER (the socket's; empty for none) is removed. It exits with the command's own
status (127: it cannot be started), and refuses to start for an owner already dead.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.5
_NOT_FOUND = 127


def descendants() -> list[int]:
    """Process ids of all that stem from this process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, frontier = [], [os.getpid()]
    while frontier:
        new = [child for parent in frontier for child in children.get(parent, ())]
        found += new
        frontier = new
    return found


def reap() -> None:
    """Collect every dead child, adopted ones too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def sweep() -> None:
    """Kill descendants until there is none."""
    while alive := descendants():
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.01)


def main(arguments: list[str]) -> int:
    grace_s, owner, folder, command = float(arguments[0]), int(arguments[1]), arguments[2], arguments[3:]
    stopping = False

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signal handler)
        nonlocal stopping
        # The kernel also sends the death signal when only the owner's thread ends.
        stopping = stopping or signum != signal.SIGHUP or os.getppid() != owner

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    if os.getppid() != owner:
        return 1
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND
    while child.poll() is None and not stopping and os.getppid() == owner:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_TICK_S)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    status = child.poll()
    sweep()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 128 + signal.SIGKILL if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
