"""Reads the records of sweeps: `<run.root>/sweeps/NAME/summary.json`, written when a point begins or ends.

Refuses a record that is damaged, naming it and what becomes of the sweep without it.
"""

import json
from pathlib import Path
from typing import Any

from engine.core.errors import RunError

_FIELDS = ("overrides", "state", "exit_code", "steps", "reward_first", "reward_last", "directory")


def sweep_names(root: Path) -> list[str]:
    """Sweeps that have a record, the newest record first."""
    found: list[tuple[int, str]] = []
    for path in (root / "sweeps").glob("*/summary.json"):
        try:
            found.append((-path.stat().st_mtime_ns, path.parent.name))
        except OSError:  # it was deleted since its name was read
            continue
    return [name for _, name in sorted(found)]


def read_sweep(root: Path, name: str) -> list[dict[str, Any]]:
    """The points of one of `sweep_names`, in their order; fields as `engine.run.sweep` writes them."""
    path = root / "sweeps" / name / "summary.json"
    try:
        points = json.loads(path.read_text(encoding="utf-8"))["points"]
        return [{field: point[field] for field in _FIELDS} for point in points]
    except (OSError, ValueError, TypeError, KeyError) as error:
        way_out = "delete it, no run depends on it, and the same command writes it again"
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error}); {way_out}") from error
