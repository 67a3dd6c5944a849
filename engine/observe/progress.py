"""Progress for a person: bars in a terminal, plain lines elsewhere, and never silence for longer than the interval."""

import sys
import threading
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressView(Protocol):
    """Shows where a job is."""

    def say(self, line: str) -> None:
        """Print one line that stays."""
        ...

    def phase(self, name: str, done: int, total: int, note: str) -> None:
        """Show the current phase: `done` of `total` (0: not counted), and a short note."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainProgress:
    """One line a change of phase, and one at least every `interval_s` while a phase lasts."""

    def __init__(self, stream: TextIO, interval_s: float) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._begun = time.monotonic()
        self._printed = 0.0
        self._line = ""
        self._phase = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="progress", daemon=True)

    def say(self, line: str) -> None:
        with self._lock:
            self._print(line)

    def phase(self, name: str, done: int, total: int, note: str) -> None:
        with self._lock:
            line = name + (f" {done}/{total}" if total else "") + (f" · {note}" if note else "")
            finished = done == total and line != self._line
            self._line = line
            if name != self._phase or finished or time.monotonic() - self._printed >= self._interval_s:
                self._phase = name
                self._print(line)

    def _beat(self) -> None:
        while not self._stop.wait(self._interval_s / 4):
            with self._lock:
                if self._line and time.monotonic() - self._printed >= self._interval_s:
                    self._print(self._line)

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        elapsed = int(self._printed - self._begun)
        self._stream.write(f"[{elapsed // 60:3d}:{elapsed % 60:02d}] {line}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


class RichProgress:
    """One live bar for the current phase; lines scroll above it."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, note="")
        self._name = ""

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def phase(self, name: str, done: int, total: int, note: str) -> None:
        if name != self._name:
            self._name = name
            self._progress.reset(self._task)
        self._progress.update(
            self._task, description=name, completed=done, total=total or None, note=note, refresh=True
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def make_progress(interval_s: float) -> ProgressView:
    """Bars where standard error is a terminal, plain lines otherwise. Standard output is left to results."""
    if sys.stderr.isatty():
        return RichProgress(Console(stderr=True))
    return PlainProgress(sys.stderr, interval_s)
