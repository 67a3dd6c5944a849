"""The processes of a container, as one of them sees them: who else lives there, and ending them all."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_DUMPABLE = 4


def close_to_neighbours() -> None:
    """Processes of the same user can neither trace this one nor look into its memory and descriptors any more."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def sweep() -> None:
    """Kill until nothing is left but process 1; which is safe against whatever the user sends."""
    while others():
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def reap_children() -> None:
    """Let ended children go, whoever they were handed down from."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def others() -> list[int]:
    """Living processes of the container but process 1 and this one."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and int(entry) not in (1, os.getpid()):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                found += [int(entry)] if state not in "ZX" else []
    return found
