"""What a command writes, kept within a limit: the beginning and the end, with a mark where bytes were dropped.

Invariant: reading never waits for processes that the command left behind; what it wrote itself is never lost.
"""

import asyncio
import contextlib
import os

_CHUNK = 1 << 16


class Capture:
    """One output stream: a pipe whose write end is given to the command."""

    def __init__(self, limit: int, uid: int) -> None:
        """`limit`: bytes kept. `uid`: who may open the stream again by name (`/dev/stdout`)."""
        self._limit = limit
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        os.fchown(self.write, uid, -1)
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def started(self) -> None:
        """The command has its end now; ours is closed."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def finish(self) -> bytes:
        """Take what is in the pipe and close it; safe to call again."""
        self.started()
        if self._read >= 0:
            # At most what a pipe can hold: a process that was left behind may write for ever.
            for _ in range(1 << 5):
                if not self._take():
                    break
        self._close()
        mark = b"\n[%d bytes dropped]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + mark + bytes(self._tail)

    def _take(self) -> bool:
        """Read once; False when there is nothing more at the moment."""
        try:
            chunk = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close()
            return False
        room = self._limit // 2 - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        excess = len(self._tail) - (self._limit - self._limit // 2)
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess
        return True

    def _close(self) -> None:
        if self._read >= 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                asyncio.get_running_loop().remove_reader(self._read)
            os.close(self._read)
            self._read = -1
