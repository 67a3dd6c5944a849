"""What `python -m engine` does with a command line: one run, or a sweep with a record of its own.

    <run.root>/sweeps/<experiment>-<hash of its points>/   summary.json, summary.txt, and Hydra's multirun.yaml

Each point is a run in its own directory, so a sweep that was killed goes on with the same command: finished points say
so, the open one resumes. The record is written again whenever a point begins or ends; the table of all points is
printed after the last one, and whenever one fails.

Invariant: nothing is kept here alone: what became of a point is read from its run's directory. Refuses two points that
are one run, and a sweep that another process is running.
"""

import hashlib
import io
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.assemble import assemble
from engine.config.built import Built, RunJob
from engine.config.composed import Composed
from engine.core.errors import ConfigError, RunError
from engine.core.whole import write_whole
from engine.store.claim import claim
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.state import read_state

_WIDE = 1000
"""Columns of the table: nothing is cut off or wrapped in a file or a pipe."""
_INTERRUPTED = 130
_SAID = {0: "finished", _INTERRUPTED: "interrupted"}
"""Exit code → state of a point that ended so."""


@dataclass(kw_only=True)
class _Point:
    """One point of the sweep and how far it is."""

    name: str
    """What is swept in it."""
    experiment: str
    hash: str
    directory: Path | None
    """Of its run; None where its job is no run."""
    fresh: bool
    begun: bool = False
    code: int | None = None
    """Exit code, once it has ended."""

    def row(self) -> dict[str, Any]:
        """What `summary.json` says of it."""
        found = _look(Layout(root=self.directory)) if self.directory and (self.begun or not self.fresh) else {}
        if self.code is not None:
            state = _SAID.get(self.code, "failed")
        else:
            state = "running" if self.begun else "finished" if found.get("phase") == "finished" else "waiting"
        rewards = found.get("rewards", {}) if state == "finished" else {}
        return {
            "overrides": self.name,
            "state": state,
            "exit_code": self.code,
            "steps": found.get("steps"),
            "reward_first": rewards.get("first"),
            "reward_last": rewards.get("last"),
            "directory": str(self.directory) if self.directory else None,
        }


class Runner:
    """`engine.config.sweep.Program`: runs one configuration, or takes up a sweep's points and then runs them."""

    def __init__(self, execute: Callable[[Composed], int], asked: Callable[[], bool]) -> None:
        """`asked`: whether the program was asked to end."""
        self._execute = execute
        self._asked = asked
        self._points: list[_Point] = []
        self._root = Path()
        self._record = Path()
        self._held = ExitStack()
        """The record's claim: until this process ends."""

    def __call__(self, composed: Composed) -> int:
        return self._execute(composed)

    def take_point(self, name: str, composed: Composed) -> None:
        built = assemble(composed)
        if isinstance(built.job, RunJob):
            built.job.check(built)
        self._points.append(_point(name, built))
        if len(self._points) == 1:
            self._root = Path(built.config["run"]["root"])

    def begin_sweep(self) -> Path:
        _refuse_one_run_twice(self._points)
        experiments = {point.experiment for point in self._points}
        name = experiments.pop() if len(experiments) == 1 else "sweep"
        facts = json.dumps([[point.name, point.hash] for point in self._points])
        self._record = self._root / "sweeps" / f"{name}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
        self._claim()
        return self._record

    def _claim(self) -> None:
        try:
            self._record.mkdir(parents=True, exist_ok=True)
            holder = self._held.enter_context(claim(Layout(root=self._record)))
        except OSError as error:
            problem = f"the sweep's record cannot be written ({error.strerror})"
            raise ConfigError("run.root", str(error.filename), problem, "name a folder to write to") from error
        if holder:
            problem = f"process {holder} is running this very sweep, with its record in {self._record}"
            raise ConfigError("run.root", str(self._root), problem, "wait for it or end it, or name another folder")

    def run_point(self, index: int, composed: Composed) -> int:
        if self._asked():  # the point before was finished all the same, no other is begun
            if self._points:
                print(f"{self._write()}{self._record}", flush=True)
            raise KeyboardInterrupt
        if index >= len(self._points):  # of a sweeper that makes its points up as it goes
            return self._execute(composed)
        point = self._points[index]
        point.begun = True
        self._write()
        print(f"point {index + 1} of {len(self._points)}: {point.name}", file=sys.stderr, flush=True)
        try:
            point.code = self._execute(composed)
        except KeyboardInterrupt:
            point.code = _INTERRUPTED
            raise
        finally:
            table = self._write()
            if point.code or index == len(self._points) - 1:
                print(f"{table}{self._record}", flush=True)
        return point.code

    def _write(self) -> str:
        """Write the record; returns the table. A disk that takes no more is told, and stops no point."""
        rows = [point.row() for point in self._points]
        table = _table(rows)
        try:
            write_whole(self._record / "summary.json", (json.dumps({"points": rows}, indent=2) + "\n").encode())
            write_whole(self._record / "summary.txt", table.encode())
        except RunError as error:
            print(error, file=sys.stderr)
        return table


def _point(name: str, built: Built) -> _Point:
    return _Point(
        name=name,
        experiment=built.experiment,
        hash=built.hash,
        directory=built.directory if isinstance(built.job, RunJob) else None,
        fresh=built.fresh,
    )


def _refuse_one_run_twice(points: list[_Point]) -> None:
    seen: dict[Path, _Point] = {}
    for point in points:
        if point.directory is None:
            continue
        first = seen.setdefault(point.directory.absolute(), point)
        if first is point:
            continue
        both = f"the points {first.name} and {point.name}"
        if first.hash == point.hash:
            problem = f"{both} are one run: what they differ in decides no result"
            way_out = "leave one out, or give each a run.name of its own, one command each"
        else:
            problem, way_out = f"{both} would share this directory", "set run.name=null: each then has its own"
        raise ConfigError("run.name", point.directory.name, problem, way_out)


def _look(layout: Layout) -> dict[str, Any]:
    """What a run's directory says of it: `phase`, `steps` that are finished, `rewards` of its summary."""
    try:
        phase = (read_state(layout) or {}).get("phase")
    except RunError:  # the run itself tells of it
        phase = None
    try:
        rewards = json.loads(layout.summary.read_text(encoding="utf-8"))["reward"]
    except (OSError, ValueError, KeyError, TypeError):
        rewards = {}
    return {"phase": phase, "steps": len(Reader(layout).step_files()), "rewards": rewards}


def _table(rows: list[dict[str, Any]]) -> str:
    """The points as text, one line each."""
    shown = Table(box=None, pad_edge=False)
    for head in ("overrides", "state", "exit", "steps", "reward first", "last", "directory"):
        shown.add_column(head)
    for row in rows:
        rewards = [None if row[key] is None else f"{row[key]:.3f}" for key in ("reward_first", "reward_last")]
        cells = [row["overrides"], row["state"], row["exit_code"], row["steps"], *rewards, row["directory"]]
        shown.add_row(*(Text("–" if cell is None else str(cell)) for cell in cells))
    page = Console(file=io.StringIO(), width=_WIDE, color_system=None)
    with page.capture() as captured:
        page.print(shown)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
