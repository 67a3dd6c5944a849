"""Who asks the program to end: Ctrl-C, SIGTERM, and SIGHUP when the terminal is gone. Heard for its whole life.

asyncio takes its handlers back with each event loop, and a sweep has one loop a point: what is asked between two of
them, or while the program is still being imported, must count too. Invariant: from `listen` on, none of these signals
kills the program without a word or is lost. What was ignored where the program was started (`nohup`, a script's `&`)
stays ignored.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""Exit code."""
SAID = "interrupted; the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """What was asked of this process, and who is told of it."""

    def __init__(self) -> None:
        self.asked = False
        """Whether it was asked to end; it stays so, whatever a job made of it."""
        self._leaves = True
        self._tell: Callable[[], object] | None = None

    def listen(self, *, leaves: bool) -> None:
        """Hear the signals from now on, in the main thread. `leaves`: nothing has begun, so the process ends at once;
        else KeyboardInterrupt is raised wherever it is, or `heard_in` a loop."""
        self._leaves = leaves
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)

    @contextlib.contextmanager
    def heard_in(self, loop: asyncio.AbstractEventLoop, hear: Callable[[], object]) -> Iterator[None]:
        """Meanwhile each signal calls `hear` in the loop, and interrupts nothing. The loop may be closed inside."""
        wake, waker = socket.socketpair()
        with wake, waker:
            for end in (wake, waker):
                end.setblocking(False)
            # The kernel may choose any thread for a signal; this wakes the loop, whose thread then runs `_heard`.
            loop.add_reader(wake, wake.recv, 4096)
            before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            self._tell = lambda: loop.call_soon_threadsafe(hear)
            try:
                yield
            finally:
                self._tell = None
                signal.set_wakeup_fd(before)
                if not loop.is_closed():
                    loop.remove_reader(wake)

    def _heard(self, *_: object) -> None:
        self.asked = True
        if self._tell is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: its job has ended
                self._tell()
        elif self._leaves:
            with contextlib.suppress(OSError):
                os.write(2, f"{SAID}\n".encode())
            os._exit(INTERRUPTED)  # an exception amid imports may be swallowed
        else:
            raise KeyboardInterrupt


ENDING = Ending()
"""Signals are the process's, so there is one."""
