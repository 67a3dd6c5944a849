"""Writes a run directory. One trial is one file that appears whole, so a restart finds it finished or not at all."""

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.records import Recomputed, Scored, Split, StepRecord, Trial
from engine.core.whole import write_whole
from engine.store.codec import artifact_row, routing_arrays, to_row
from engine.store.layout import Layout, numbered
from engine.store.schema import record_schema

_MADE_BY_STEPS: tuple[Split, ...] = ("train", "validation")


def _parquet(record: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    buffer, table = io.BytesIO(), pa.Table.from_pylist(list(rows), schema=record_schema(record))
    # One row, or rows that are all different: dictionaries and statistics would only hold every value once more.
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False, write_statistics=False)
    return buffer.getvalue()


class Writer:
    """The only thing that writes to a run directory beside checkpoints, logs and TensorBoard."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def trial(self, step: int, scored: Scored) -> None:
        """Keep a finished trial. Routing and artefacts go first: a trial file promises that they are there."""
        trial = scored.trajectory.trial
        arrays = routing_arrays(scored) if trial.split == "train" else {}
        if arrays:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)
            write_whole(self.layout.routing(step, trial.split, trial.key), buffer.getvalue())
        patch = scored.trajectory.patch
        for artifact in patch.artifacts if patch is not None else ():
            path = self.layout.artifact(artifact_row(artifact)["digest"])
            if not path.exists():
                write_whole(path, artifact.contents)
        write_whole(self.layout.trial(step, trial.split, trial.key), _parquet("trial", [to_row(scored)]))

    def forget_routing(self, step: int) -> None:
        """Delete all routed experts up to a step, retried attempts' too: they are large, and useless once trained."""
        for number, folder in self.layout.routings().items():
            if number <= step:
                shutil.rmtree(folder)

    def forget_trial(self, step: int, trial: Trial) -> None:
        """Delete an attempt that counts no more."""
        self.layout.trial(step, trial.split, trial.key).unlink(missing_ok=True)
        self.layout.routing(step, trial.split, trial.key).unlink(missing_ok=True)

    def forget_beyond(self, version: int) -> None:
        """Delete what came of weights that no checkpoint holds: trials of any later version, records and alarms of the
        updates that are made again. Trials that `version` itself sampled stay."""
        gone = [found for split in _MADE_BY_STEPS for found in numbered(self.layout.rollouts(split), "step=").items()]
        for number, folder in gone:
            if number > version:
                shutil.rmtree(folder)
        places = (self.layout.steps, self.layout.recomputed(0).parent)
        files = [found for place in places for found in numbered(place, "step=", ".parquet").items()]
        for number, path in (*files, *self.layout.alarms()):
            if number >= version:
                path.unlink()

    def step(self, record: StepRecord) -> None:
        row = {
            "step": record.step,
            "policy_version": record.policy_version,
            "metrics": list(record.metrics.items()),
        }
        write_whole(self.layout.step(record.step), _parquet("step", [row]))

    def recomputed(self, step: int, rows: Sequence[Recomputed]) -> None:
        """Keep what the trainer made of a step's trials; one that is trained again after a restart replaces it."""
        plain = [{**vars(row), "trial": str(row.trial)} for row in rows]
        write_whole(self.layout.recomputed(step), _parquet("recomputed", plain))

    def tokenizer(self, model: Path) -> None:
        """Keep the `tokenizer.json` of a checkpoint folder, once: a run can be read when the model is gone."""
        if not self.layout.tokenizer.exists():
            write_whole(self.layout.tokenizer, (model / "tokenizer.json").read_bytes())

    def json(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.layout.root / name, (json.dumps(value, indent=2) + "\n").encode())

    def text(self, name: str, value: str) -> None:
        write_whole(self.layout.root / name, value.encode())

    def alert(self, step: int, name: str, detail: Mapping[str, Any]) -> None:
        """Keep one alarm of a step as a file of its own; the same one again replaces it."""
        self.json(f"alerts/step={step:06d}-{name}.json", {"alert": name, "step": step, **detail})
