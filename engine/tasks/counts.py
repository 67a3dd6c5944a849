"""The file of solve counts: how many of so many rollouts solved each task, and which policy they were of.

Written by `job=difficulty`, read by the pool `tasks=selected`; its schema is `schemas/records/solve_counts.json`.
Invariant: it appears whole or not at all, and what stands in it is never replaced. Refuses a file of another form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from engine.config.schemas import TREE
from engine.core.errors import ConfigError, RunError
from engine.core.whole import check_free, write_whole

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SolveCount:
    """What one run's rollouts made of one task."""

    task: str
    fingerprint: str
    """Of the task as it was tried."""
    solved: int
    of: int
    """Kept rollouts that were counted."""
    excluded: int
    """Rollouts without a verdict."""
    run: str
    checkpoint: str | None
    """Fingerprint of the checkpoint that the run began with; None where the run does not say."""
    policy_versions: tuple[int, int]
    """Lowest and highest number of updates before the rollouts."""


def write_counts(key: str, path: Path, counts: Sequence[SolveCount]) -> None:
    """Write a new file. Raises ConfigError that names `key` where there is one already, or none can be written."""
    check_free(key, path)
    lines = ",\n".join(json.dumps(asdict(count), ensure_ascii=False) for count in counts)
    try:
        write_whole(path, f'{{"format": {_FORMAT}, "counts": [\n{lines}\n]}}\n'.encode())
    except RunError as error:
        raise ConfigError(key, str(path), str(error), "name a file to write to") from error


def read_counts(key: str, path: Path) -> tuple[SolveCount, ...]:
    """Raises ConfigError that names `key`."""
    way_out = "name a file that job=difficulty wrote (job.to=FILE)"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(key, str(path), "there is no such file", way_out) from error
    except (OSError, ValueError) as error:
        raise ConfigError(key, str(path), f"cannot be read ({' '.join(str(error).split())[:160]})", way_out) from error
    schema = json.loads((TREE.schemas / "records/solve_counts.json").read_text(encoding="utf-8"))
    wrong = next(Draft202012Validator(schema).iter_errors(content), None)
    if wrong is not None:
        place = wrong.json_path.removeprefix("$").lstrip(".") or "the whole"
        raise ConfigError(key, str(path), f"holds no solve counts ({place}: {wrong.message[:160]})", way_out)
    return tuple(_count(entry) for entry in content["counts"])


def _count(entry: Mapping[str, Any]) -> SolveCount:
    return SolveCount(**{**entry, "policy_versions": tuple(entry["policy_versions"])})
