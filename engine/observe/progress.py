"""Progress for a person: bars in a terminal, plain lines elsewhere, and never silence for longer than the interval.

Invariant: while a phase lasts, something is printed at least every `interval_s` (and the period of the heartbeat),
whatever the job itself is busy with: a thread says again what is going on. A note may be a function, which is asked at
that moment; it must not block and may be called from that thread.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Note = str | Callable[[], str]
"""A short text beside a phase, or a function that gives it whenever the phase is shown."""


class ProgressView(Protocol):
    """Shows where a job is."""

    def say(self, line: str) -> None:
        """Print one line that stays."""
        ...

    def phase(self, name: str, done: int, total: int, note: Note) -> None:
        """Show the current phase: `done` of `total` (0: not counted), and a short note."""
        ...

    def beat(self) -> None:
        """Called again and again by the heartbeat: bring what is shown up to date, end a silence."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Heartbeat:
    """A thread that calls functions every `period_s`, whatever the job is busy with, between `start` and `stop`."""

    def __init__(self, period_s: float, beats: Sequence[Callable[[], None]]) -> None:
        self._period_s = period_s
        self._beats = beats
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when no function is being called any more, and none will be."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            for beat in self._beats:
                beat()


def period(interval_s: float) -> float:
    """How often a heartbeat looks, for something that is due every `interval_s`; both in seconds."""
    return min(1.0, interval_s / 10)


class PlainProgress:
    """One line a change of phase, and one at least every `interval_s` while a phase lasts.

    A line: time since the start, phase, how far, note, and how long the phase has lasted.
    """

    def __init__(self, stream: TextIO, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._begun = clock()
        self._printed = self._begun
        self._phase = ""
        self._entered = self._begun
        self._done = self._total = 0
        self._note: Note = ""
        self._lock = threading.RLock()

    def say(self, line: str) -> None:
        with self._lock:
            self._print(line)

    def phase(self, name: str, done: int, total: int, note: Note) -> None:
        with self._lock:
            changed = name != self._phase
            finished = 0 < total == done != self._done
            if changed:
                self._phase, self._entered = name, self._clock()
            self._done, self._total, self._note = done, total, note
            if changed or finished:
                self._print(self._line())
            else:
                self.beat()

    def beat(self) -> None:
        with self._lock:
            if self._phase and self._clock() - self._printed >= self._interval_s:
                self._print(self._line())

    def _line(self) -> str:
        line = self._phase + (f" {self._done}/{self._total}" if self._total else "")
        note = self._note if isinstance(self._note, str) else self._note()
        return f"{line}{f' · {note}' if note else ''} | {self._clock() - self._entered:.0f} s"

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        elapsed = int(self._printed - self._begun)
        self._stream.write(f"[{elapsed // 60:3d}:{elapsed % 60:02d}] {line}\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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
        self._note: Note = ""

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def phase(self, name: str, done: int, total: int, note: Note) -> None:
        if name != self._name:
            self._name = name
            self._progress.reset(self._task)
        self._note = note
        self._progress.update(
            self._task, description=name, completed=done, total=total or None, note=self._text(), refresh=True
        )

    def beat(self) -> None:
        self._progress.update(self._task, note=self._text())

    def _text(self) -> str:
        return self._note if isinstance(self._note, str) else self._note()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class Shown:
    """A view with its heartbeat; beside the view, `beats` are called too."""

    def __init__(self, view: ProgressView, interval_s: float, beats: Sequence[Callable[[], None]] = ()) -> None:
        self._view = view
        self._heartbeat = Heartbeat(period(interval_s), (view.beat, *beats))

    def __enter__(self) -> ProgressView:
        view = self._view.__enter__()
        self._heartbeat.start()
        return view

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.stop()
        self._view.__exit__(kind, error, trace)


def make_progress(interval_s: float, beats: Sequence[Callable[[], None]] = ()) -> Shown:
    """Bars where standard error is a terminal, plain lines otherwise. Standard output is left to results."""
    terminal = sys.stderr.isatty()
    view: ProgressView = RichProgress(Console(stderr=True)) if terminal else PlainProgress(sys.stderr, interval_s)
    return Shown(view, interval_s, beats)
