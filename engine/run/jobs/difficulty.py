"""`job=difficulty`: how many of a task's rollouts solved it, in one run or in several side by side.

Starts nothing, and reads a run that is still going on like a finished one. What it counts can be written to a file by
which `tasks=selected` chooses tasks. Invariant: that file appears whole or not at all, and never replaces another.
Refuses a folder that holds no run, and a choice of steps that holds no trial.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.built import Built
from engine.core.errors import ConfigError
from engine.core.records import Split
from engine.core.whole import check_free
from engine.observe.chosen import Named, chosen
from engine.observe.curves import check_runs
from engine.observe.difficulty import flags, table, write_page
from engine.observe.page import names_apart
from engine.observe.progress import ProgressView, make_progress
from engine.observe.solves import Difficulty, Measured, difficulty, measure, usual
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.tasks.counts import write_counts

_KEY = "job.runs"
_TO = "job.to"
_WIDE = 1000
"""Columns when the output is no terminal: nothing is cut off or wrapped in a file or a pipe."""


class DifficultyJob:
    """Writes `reports/difficulty.html` into the first of `runs`.

    Args:
        runs: folders of runs; empty: the one that `from=` names, else the run of this configuration.
        split: which trials; None: all.
        first_step: the first step whose trials count, from 0; None: from the beginning.
        last_step: the last one; None: to the end.
        of: rollouts of each task that are counted, its first ones; None: as many as most tasks have in a step.
        to: new file for the counts; None: none is written.
    """

    def __init__(
        self,
        *,
        runs: Sequence[str],
        split: Split | None,
        first_step: int | None,
        last_step: int | None,
        of: int | None,
        to: str | None,
    ) -> None:
        self.runs = runs
        self.split = split
        self.first_step = first_step
        self.last_step = last_step
        self.of = of
        self.to = to

    async def run(self, built: Built) -> int:
        """Exit code 0; the last line is the page's path. Raises ConfigError, and RunError on a damaged file."""
        roots = [Path(run) for run in self.runs] or [_own(built)]
        check_runs(_KEY, roots)
        if self.to is not None:
            check_free(_TO, Path(self.to))
        layouts = [Layout(root=root) for root in roots]
        readers = [Reader(layout) for layout in layouts]
        trials = [self._trials(reader) for reader in readers]
        with make_progress(built.observe.progress_interval_s) as progress:
            measured = await asyncio.to_thread(_read, readers, trials, progress)
        of = self.of if self.of is not None else usual(measured)
        shown = [difficulty(run, name, of) for run, name in zip(measured, names_apart(layouts), strict=True)]
        _print(shown)
        if self.to is not None:
            write_counts(_TO, Path(self.to), [count for run in shown for count in run.counts])
            print(f"solve counts: {self.to}")
        write_page(layouts[0], shown)
        print(layouts[0].difficulty)
        return 0

    def _trials(self, reader: Reader) -> list[Named]:
        """Raises ConfigError where no trial is chosen."""
        found = chosen(reader, self.split, None)
        first, last = self.first_step or 0, self.last_step
        within = [named for named in found if first <= named.step and (last is None or named.step <= last)]
        if not within:
            steps = [named.step for named in found]
            key, value = ("job.first_step", first) if self.first_step else ("job.last_step", last)
            problem = f"{reader.layout.root} has no finished trial of these steps"
            raise ConfigError(key, value, problem, f"it has some of steps {min(steps)} to {max(steps)}")
        return within


def _own(built: Built) -> Path:
    return built.written.path.parent if built.written is not None else built.directory


def _read(readers: Sequence[Reader], trials: Sequence[Sequence[Named]], progress: ProgressView) -> list[Measured]:
    measured = []
    for reader, its in zip(readers, trials, strict=True):

        def show(done: int, name: str = reader.layout.root.name, total: int = len(its)) -> None:
            progress.phase("counting", done, total, name)

        measured.append(measure(reader, its, show))
    return measured


def _print(runs: Sequence[Difficulty]) -> None:
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=_WIDE, highlight=False)
    heads, rows = table(runs, bars=True)
    shown = Table(box=None, pad_edge=False)
    for head in heads:
        shown.add_column(Text(head), overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
    for run in runs:
        for line in flags(run):
            console.print(Text(line))
