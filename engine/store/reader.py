"""Reads a run directory, live or finished. Needs no lock: every file is whole or absent.

Refuses a file that is damaged all the same (a disk, an editor), naming it and what becomes of the run without it.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.errors import RunError
from engine.core.records import Scored, Split, StepRecord, Trial
from engine.store.codec import from_row
from engine.store.layout import Layout
from engine.store.state import read_state

_DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, zipfile.BadZipFile)
_SAMPLED_AGAIN = "delete it and the same command samples that trial again"
_RESTORE = "restore it from a copy, or set the run aside with run.fresh=true"


@contextmanager
def _whole(path: Path, way_out: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".replace(str(path), path.name).split())[:160]
        raise RunError(f"{path} is damaged ({reason}); {way_out}") from error


class Reader:
    """Everything that looks at a run goes through here."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def state(self) -> dict[str, Any] | None:
        """The contents of `state.json`; None before the first start."""
        return read_state(self.layout)

    def steps(self) -> list[StepRecord]:
        """All finished optimisation steps, in order."""
        records = []
        for path in sorted(self.layout.steps.glob("step=*.parquet")):
            with _whole(path, _RESTORE):
                row = pq.read_table(path).to_pylist()[0]
                metrics = dict(row["metrics"])
                records.append(StepRecord(step=row["step"], policy_version=row["policy_version"], metrics=metrics))
        return records

    def rows(self, step: int, split: Split, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Plain rows of all finished trials of a step; `columns`: only these are read."""
        for path in sorted(self.layout.trials(step, split).glob("*.parquet")):
            with _whole(path, _RESTORE), pq.ParquetFile(path) as file:  # half of what `read_table` takes
                row = file.read(columns=columns and list(columns)).to_pylist()[0]
                asked = {name: row[name] for name in columns or row}  # `read` leaves out in silence what is not there
            yield asked

    def trial(self, step: int, trial: Trial) -> Scored | None:
        """A finished trial as records, or None when it is not (or no longer wholly) there."""
        path = self.layout.trial(step, trial.split, trial.key)
        if not path.exists():
            return None
        blob = self.layout.routing(step, trial.split, trial.key)
        routing: dict[str, Any] = {}
        with _whole(path, _SAMPLED_AGAIN):
            row = pq.read_table(path).to_pylist()[0]
            if blob.exists():
                with np.load(blob) as stored:
                    routing = {name: stored[name] for name in stored.files}
            elif row["routed"] and trial.split == "train":
                return None  # the step was trained once, but its checkpoint is gone: sampled again, with its routing
            return from_row(row, trial, routing)

    def checkpoints(self) -> list[int]:
        """Versions of the whole checkpoints, oldest first."""
        found = (path.name.removeprefix("version=") for path in self.layout.checkpoints.glob("version=*"))
        return sorted(int(name) for name in found if name.isdecimal())
