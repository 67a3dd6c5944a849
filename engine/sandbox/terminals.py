"""A terminal of a sandbox's own: a pair whose far end has its name in the sandbox (`tty` says `/dev/pts/0`), and whose
near end is the host's to read and write.

Invariant: the far end is opened through the near one and not by a path, so nothing inside can put something else there.
Refuses a sandbox whose `/dev/pts/ptmx` is no terminal multiplexer.
"""

import fcntl
import os
import stat
import struct

from engine.core.errors import SandboxError
from engine.sandbox.files import Owner

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_MULTIPLEXER = (5, 2)


class Terminal:
    """An open pair, of the sandbox whose first process has host id `init`; the far end is `owner`'s."""

    def __init__(self, init: int, owner: Owner) -> None:
        self.near = self.far = -1
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
        try:
            self.near = os.open(f"/proc/{init}/root/dev/pts/ptmx", flags | os.O_NOFOLLOW | os.O_NONBLOCK)
            about = os.fstat(self.near)
            if not stat.S_ISCHR(about.st_mode) or (os.major(about.st_rdev), os.minor(about.st_rdev)) != _MULTIPLEXER:
                raise OSError(0, "its /dev/pts/ptmx is something else")
            fcntl.ioctl(self.near, _TIOCSPTLCK, struct.pack("i", 0))
            self.far = fcntl.ioctl(self.near, _TIOCGPTPEER, flags)
            os.fchown(self.far, owner.uid, -1)
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox gives no terminal: {error.strerror}") from error

    def started(self) -> None:
        """The command has the far end now; ours is closed."""
        if self.far >= 0:
            os.close(self.far)
            self.far = -1

    def close(self) -> None:
        """Hang up; safe to call again."""
        self.started()
        if self.near >= 0:
            os.close(self.near)
            self.near = -1
