"""All trials of a run, or of one of its steps, as ATIF files in a folder; read from the store alone.

Invariant: a live run is read like a finished one: what is finished when the export begins is told, and
a trial whose attempt is taken back meanwhile is passed over. Refuses a run that has no such trial.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from engine.core.errors import AlignmentError, RunError
from engine.observe.atif.document import COLUMNS, About, documents
from engine.observe.chosen import Named
from engine.store.reader import Reader


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
