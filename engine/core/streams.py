"""Standard output and error that outlive whoever reads them: a pager, `| head`, a terminal, an ssh session.

Invariant: where the reader is gone the program goes on, silently, and ends with the code of what it did. Words on
standard error never end it, whatever becomes of them; results on standard output that a disk does not take do. A
stream that was closed before the start (`2>&-`) leads nowhere, and no other file gets its number.
"""

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN})
_HUNG_UP = frozenset({errno.EIO, errno.ENXIO})
"""Of a terminal; a disk says the first one too."""


def outlive_readers() -> None:
    """Make this process's own streams so, once; others (a test's) are left alone."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stdout is sys.__stdout__:
        sys.stdout = _steady(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _steady(sys.stderr, 2)


def _steady(stream: TextIO | None, number: int) -> TextIO:
    """`stream` again, or one where there was none, above a file that forgives."""
    old: Any = stream
    if old is not None:
        old.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Steady(number)),
        encoding=getattr(old, "encoding", "utf-8"),
        errors=getattr(old, "errors", "backslashreplace"),
        newline="\n",
        line_buffering=number == 2 or getattr(old, "line_buffering", False) or getattr(old, "write_through", False),
    )


class _Steady(io.FileIO):
    """Standard output (1) or error (2)."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_terminal = os.isatty(number)  # one that hung up says no

    def write(self, data: Any) -> int:
        while True:
            try:
                written: int | None = super().write(data)
            except OSError as error:
                gone = error.errno in _GONE or (self._is_terminal and error.errno in _HUNG_UP)
                if gone:
                    self._lead_nowhere()
                elif self.fileno() != 2:
                    raise
                return memoryview(data).nbytes
            if written is not None:
                return written
            select.select([], [self], [])  # another program has it set not to wait

    def _lead_nowhere(self) -> None:
        """Also for what writes to the number itself, and for programs that are started later."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
