"""Reads a run directory, live or finished. Needs no lock: every file is whole or absent.

Refuses a file that is damaged all the same (a disk, an editor), naming it and what becomes of the run without it.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from engine.core.errors import RunError
from engine.core.records import Artifact, Scored, Split, StepRecord, Trial
from engine.store.codec import artifacts_of, from_row
from engine.store.layout import Layout, is_trial, numbered
from engine.store.state import read_state

_DAMAGE = (
    *(pa.ArrowException, zipfile.BadZipFile, yaml.YAMLError),
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError),
)
_SAMPLED_AGAIN = "delete it and the same command samples that trial again"
_LATER: dict[str, Any] = {"artifacts": []}
"""Columns that runs of older versions do not have."""
_SHOWN_ONLY = "the run does not depend on it"
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
        return [_read_step(path, _version(path)) for path in self.step_files()]

    def step(self, step: int) -> StepRecord:
        """One finished optimisation step."""
        path = self.layout.step(step)
        return _read_step(path, _version(path))

    def last_step(self) -> StepRecord | None:
        """The newest finished optimisation step."""
        files = self.step_files()
        return _read_step(files[-1], _version(files[-1])) if files else None

    def step_files(self) -> list[Path]:
        """One for each finished step, in order."""
        return list(numbered(self.layout.steps, "step=", ".parquet").values())

    def rows(self, step: int, split: Split, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Plain rows of all finished trials of a step; `columns`: only these are read."""
        for name in self.trials(step, split):
            yield self.row(step, split, name, columns)

    def row(self, step: int, split: Split, name: str, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """The plain row of one of `trials`; `columns`: only these are read."""
        path = self.layout.trials(step, split) / f"{name}.parquet"
        with _whole(path, _RESTORE), pq.ParquetFile(path) as file:  # half of what `read_table` takes
            row = file.read(columns=columns and list(columns)).to_pylist()[0]
            row = _LATER | row
            return {name: row[name] for name in columns or row}  # `read` leaves out in silence what is not there

    def trials(self, step: int, split: Split) -> list[str]:
        """Names of the finished trials of a step (their keys), in order."""
        with suppress(FileNotFoundError, NotADirectoryError):
            # A tenth of what `glob` takes, which counts where there are a thousand steps.
            names = os.listdir(self.layout.trials(step, split))  # noqa: PTH208
            stems = (name.removesuffix(".parquet") for name in names if name.endswith(".parquet"))
            return sorted(filter(is_trial, stems))
        return []

    def rollouts(self, split: Split) -> list[int]:
        """Steps (of validations: numbers of updates before them) that have trials of a split, in order."""
        return list(numbered(self.layout.rollouts(split), "step="))

    def recomputed(self, step: int, name: str) -> list[dict[str, Any]] | None:
        """What the trainer made of one of `trials`, a plain row a segment; None where it was not trained (yet)."""
        path = self.layout.recomputed(step)
        if not path.exists():
            return None
        with _whole(path, _SHOWN_ONLY):
            rows = pq.read_table(path, partitioning=None, filters=[("trial", "=", name)]).to_pylist()
            return sorted(rows, key=lambda row: row["segment"]) or None

    def config(self) -> dict[str, Any] | None:
        """The contents of `config.yaml`; None before the first start."""
        path = self.layout.config
        if not path.exists():
            return None
        with _whole(path, _RESTORE):
            return dict(yaml.safe_load(path.read_bytes()))

    def warm_start(self) -> dict[str, Any] | None:
        """What the gate of a warm start found; None where there was none."""
        path = self.layout.reports / "warm_start.json"
        if not path.exists():
            return None
        with _whole(path, _SHOWN_ONLY):
            return dict(json.loads(path.read_text()))

    def alerts(self) -> list[dict[str, Any]]:
        """All alarms, oldest first."""
        found = []
        for path in sorted(self.layout.alerts.glob("*.json")):
            with _whole(path, _SHOWN_ONLY):
                found.append(dict(json.loads(path.read_text())))
        return found

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
            return from_row(row, trial, routing, self.artifacts(row.get("artifacts", [])))

    def artifacts(self, rows: Sequence[dict[str, Any]]) -> tuple[Artifact, ...]:
        """What a row's column `artifacts` names. Raises RunError where one is not there, or not what it was."""

        def contents(digest: str) -> bytes:
            path = self.layout.artifact(digest)
            with _whole(path, _SAMPLED_AGAIN):
                found = path.read_bytes()
                if hashlib.sha256(found).hexdigest() != digest:
                    raise ValueError("its contents are others")
                return found

        return artifacts_of(rows, contents)

    def checkpoints(self) -> list[int]:
        """Versions of the whole checkpoints, oldest first."""
        return list(numbered(self.layout.checkpoints, "version="))


def _version(path: Path) -> tuple[int, int]:
    """Another one once the file was written again; whoever reads it tells of one that is not there."""
    with suppress(OSError):
        about = path.stat()
        return about.st_mtime_ns, about.st_size
    return 0, 0


@lru_cache(maxsize=20_000)
def _read_step(path: Path, version: tuple[int, int]) -> StepRecord:  # noqa: ARG001 (a key)
    """Kept while the file stays as it is: a page of a run of a thousand steps is asked for every few seconds."""
    with _whole(path, _RESTORE):
        row = pq.read_table(path).to_pylist()[0]
        return StepRecord(step=row["step"], policy_version=row["policy_version"], metrics=dict(row["metrics"]))
