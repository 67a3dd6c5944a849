"""Puts the task directory of a row into a folder, or says why there is none.

Invariant: a directory appears whole; one that is there already is not made again.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import ConfigError, PatchError
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place
from engine.tasks.harbor import Limits, write_task
from engine.tasks.rows.checkouts import Checkouts
from engine.tasks.rows.directories import draft_of
from engine.tasks.rows.funnel import Outcome, obstacle
from engine.tasks.rows.record import TaskRow


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where directories are put, and what they are made with."""

    folder: Path
    clones: Checkouts
    image: ImageSpec
    limits: Limits


def put(row: TaskRow, place: Place | None, outcome: Outcome) -> None:
    """Account for one row; `place`: None where no clones are at hand."""
    found = obstacle(row)
    if found is not None:
        outcome.refused(row, *found)
    elif place is None or row.base_commit is None:
        detail = f"it needs {row.repository} at {row.base_commit}"
        outcome.refused(row, "no clones are named (checkouts)", detail)
    elif (place.folder / row.id).is_dir():
        outcome.written.append(row.id)
    else:
        _make(row, row.base_commit, place, outcome)


def _make(row: TaskRow, commit: str, place: Place, outcome: Outcome) -> None:
    try:
        draft = draft_of(row, place.clones.tree(row.repository, commit), place.image, place.limits)
    except ConfigError as error:
        outcome.refused(row, "its repository or commit is not at hand", str(error))
        return
    except PatchError as error:
        outcome.refused(row, "a diff of it does not fit the commit", str(error))
        return
    with temporary_folder("row", place.folder) as made:
        move_into_place(write_task(draft, made / row.id), place.folder / row.id)
    outcome.written.append(row.id)
