"""Reads a run directory, live or finished. Needs no lock: every file is whole or absent."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from engine.core.records import Scored, Split, StepRecord, Trial
from engine.store.codec import from_row
from engine.store.layout import Layout


class Reader:
    """Everything that looks at a run goes through here."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def state(self) -> dict[str, Any] | None:
        """The contents of `state.json`; None before the first start."""
        if not self.layout.state.exists():
            return None
        state: dict[str, Any] = json.loads(self.layout.state.read_text())
        return state

    def steps(self) -> list[StepRecord]:
        """All finished optimisation steps, in order."""
        records = []
        for path in sorted(self.layout.steps.glob("step=*.parquet")):
            row = pq.read_table(path).to_pylist()[0]
            records.append(
                StepRecord(step=row["step"], policy_version=row["policy_version"], metrics=dict(row["metrics"]))
            )
        return records

    def rows(self, step: int, split: Split) -> Iterator[dict[str, Any]]:
        """Plain rows of all finished trials of a step."""
        for path in sorted(self.layout.trials(step, split).glob("*.parquet")):
            yield pq.read_table(path).to_pylist()[0]

    def trial(self, step: int, trial: Trial) -> Scored | None:
        """A finished trial as records, or None when it is not (or no longer wholly) there."""
        path = self.layout.trial(step, trial.split, trial.key)
        if not path.exists():
            return None
        row = pq.read_table(path).to_pylist()[0]
        blob = self.layout.routing(step, trial.split, trial.key)
        routing: dict[str, Any] = {}
        if blob.exists():
            with np.load(blob) as stored:
                routing = {name: stored[name] for name in stored.files}
        return from_row(row, trial, routing)

    def checkpoints(self) -> list[int]:
        """Versions of the whole checkpoints, oldest first."""
        found = self.layout.checkpoints.glob("version=*")
        return sorted(int(path.name.split("=")[1]) for path in found if path.is_dir())
