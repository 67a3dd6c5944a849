"""The porter: `python -I -S porter.py CONTROL`, one process of each runtime, that takes commands into its sandboxes.

A command could start an interpreter of its own (`enter`, as `commands.start_cold` does), but that takes longer than
most commands do. The porter has all imported, and forks.

It has the engine's rights and reads nothing that a sandbox holds; what it forks gives its rights up by the steps of
`enter`. It ends with the engine: the kernel tells it, and CONTROL, a socket that only the engine has, ends.
"""

import ctypes
import os
import socket
import sys
from importlib import import_module

_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def main(control: int, engine: int) -> None:
    """Serve until the engine, process `engine`, closes its end of `control`."""
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120
    enter, fork_server = import_module("enter"), import_module("fork_server")
    fork_server.check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))
    if os.getppid() != engine:
        return
    enter.leave_keyring()
    fork_server.serve(socket.socket(fileno=control), enter, enter.execute, lambda _control, _open: None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
