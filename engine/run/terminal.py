"""A person's own terminal, joined to one in a sandbox: every key goes there, Ctrl-C and Ctrl-D included.

Invariant: the terminal is as it was once `talk` has returned, however it did.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

_IN, _OUT = 0, 1
_CHUNK = 1 << 14
_AHEAD = 1 << 16
"""Bytes that may be typed (pasted) ahead of what reads them."""


def is_terminal() -> bool:
    """Whether a person is at the other end of standard input and output."""
    return os.isatty(_IN) and os.isatty(_OUT)


async def talk(terminal: int) -> None:
    """A `Talk` of contracts.py, for the terminal that this program was started on."""
    sys.stdout.flush()
    with _raw(), _sized(terminal):
        relay = _Relay(terminal)
        try:
            await relay.ended.wait()
        finally:
            relay.close()


class _Relay:
    """Both ways, on the event loop."""

    def __init__(self, terminal: int) -> None:
        self.ended = asyncio.Event()
        """Either side is gone."""
        self._terminal = terminal
        self._typed = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(terminal, self._show)
        self._loop.add_reader(_IN, self._type)

    def _show(self) -> None:
        with self._ends(), contextlib.suppress(BlockingIOError):
            data = os.read(self._terminal, _CHUNK)
            if not data:
                raise EOFError
            while data:
                data = data[os.write(_OUT, data) :]

    def _type(self) -> None:
        with self._ends(), contextlib.suppress(BlockingIOError):
            data = os.read(_IN, _CHUNK)
            if not data:
                raise EOFError
            self._typed += data
            if len(self._typed) > _AHEAD:
                self._loop.remove_reader(_IN)
        self._pass_on()

    def _pass_on(self) -> None:
        with self._ends(), contextlib.suppress(BlockingIOError):
            del self._typed[: os.write(self._terminal, self._typed)]
        if self.ended.is_set():
            return
        if self._typed:
            self._loop.add_writer(self._terminal, self._pass_on)
        else:
            self._loop.remove_writer(self._terminal)
            self._loop.add_reader(_IN, self._type)

    @contextlib.contextmanager
    def _ends(self) -> Iterator[None]:
        """What fails because a side is gone ends it all: nobody would read, or nobody would write, from then on."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, EOFError):
            self.close()
            self.ended.set()

    def close(self) -> None:
        self._loop.remove_reader(_IN)
        self._loop.remove_reader(self._terminal)
        self._loop.remove_writer(self._terminal)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Every key is passed on as it is typed and nothing is made a signal, or shown, here."""
    before = termios.tcgetattr(_IN)
    try:
        tty.setraw(_IN)
        yield
    finally:
        termios.tcsetattr(_IN, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _sized(terminal: int) -> Iterator[None]:
    """The inner terminal has the outer one's size, from now on. Not through the loop: its handlers of signals would
    take the program's own away (`engine.core.ending`)."""

    def resize(*_: object) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(_OUT, termios.TIOCGWINSZ, bytes(8)))

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
