"""All trials of a run, or of one of its steps, as ATIF files in a folder; read from the store alone.

Invariant: a live run is read like a finished one: what is finished when the export begins is told, and
a trial whose attempt is taken back meanwhile is passed over. Refuses a run that has no such trial.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.core.errors import AlignmentError, ConfigError, RunError
from engine.core.records import Split
from engine.observe.atif.document import COLUMNS, About, documents
from engine.store.reader import Reader

SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Named:
    """Where a stored trial lies."""

    split: Split
    step: int
    name: str


def chosen(reader: Reader, split: Split | None, step: int | None) -> list[Named]:
    """The finished trials of a run. Raises ConfigError when there is none."""
    found = [
        Named(split=one, step=number, name=name)
        for one in SPLITS
        for number in reader.rollouts(one)
        if split in (None, one) and step in (None, number)
        for name in reader.trials(number, one)
    ]
    if not found:
        raise _none(reader, split, step)
    return found


def _none(reader: Reader, split: Split | None, step: int | None) -> ConfigError:
    root = reader.layout.root
    there = {one: [number for number in reader.rollouts(one) if reader.trials(number, one)] for one in SPLITS}
    if not any(there.values()):
        return ConfigError("job.run", str(root), "no trial of this run is finished", "export it once one is")
    if split is not None and not there[split]:
        return ConfigError("job.split", split, f"{root} has no finished trial of it", "leave it null for all there are")
    steps = sorted({number for one in SPLITS if split in (None, one) for number in there[one]})
    return ConfigError(
        "job.step", step, f"{root} has no finished trial of it", f"name one from {steps[0]} to {steps[-1]}"
    )


def write(reader: Reader, trials: Sequence[Named], folder: Path, prompt_ids: bool) -> Iterator[int]:
    """Write the files of each trial below `folder`, a new one that nobody reads yet; yields after each how many it
    has: 0 for one that is gone.

    Raises RunError on a trial that is damaged, or cannot be told faithfully."""
    configuration = (reader.config() or {}).get("configuration") or {}
    for trial in trials:
        row = _row(reader, trial)
        files = {} if row is None else _documents(reader, trial, row, configuration, prompt_ids)
        for name, document in files.items():
            path = folder / trial.split / f"step={trial.step:06d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        yield len(files)


def _row(reader: Reader, trial: Named) -> Mapping[str, Any] | None:
    """None where the attempt was taken back since."""
    try:
        return reader.row(trial.step, trial.split, trial.name, COLUMNS)
    except RunError:
        if trial.name in reader.trials(trial.step, trial.split):
            raise
        return None


def _documents(
    reader: Reader, trial: Named, row: Mapping[str, Any], configuration: Mapping[str, Any], prompt_ids: bool
) -> dict[str, dict[str, Any]]:
    trained = reader.recomputed(trial.step, trial.name) if trial.split == "train" else None
    about = About(
        name=trial.name,
        step=trial.step,
        agent_version=_version(configuration, row["harness"]),
        model=_text(configuration, "model", "name"),
        advantage=trained[0]["advantage"] if trained else None,
        prompt_ids=prompt_ids,
    )
    try:
        return documents(row, about)
    except (RunError, AlignmentError) as error:
        raise RunError(f"{trial.split} trial {trial.name} of step {trial.step}: {error}") from error


def _version(configuration: Mapping[str, Any], harness: str) -> str:
    """Of the harness; a command of the user's own need not say which it is, and the form wants a text."""
    return _text(configuration, "harnesses", harness, "version") or "unknown"


def _text(configuration: Mapping[str, Any], *keys: str) -> str | None:
    value: Any = configuration
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else str(value)
