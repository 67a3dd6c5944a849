"""Sandboxes that were left running, to be entered again by another process (`job=trial job.enter=NAME`).

    ROOM/left.json   how it is entered: user, environment, current folder; until when it is kept

Invariant: the note appears last, when nothing runs in the sandbox but its first process; a room with it is removed by
`job=reap`, or by the next start of anything when its time is over, and by nobody while somebody is inside.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.core.errors import SandboxError
from engine.sandbox.rooms import Room

NOTE = "left.json"


@dataclass(frozen=True, kw_only=True)
class Left:
    """What entering needs beside the room's record."""

    name: str
    """Of the room's folder."""
    workdir: str
    environment: dict[str, str]
    uid: int
    disk_mb: int
    until_s: float = 0.0
    """Unix time until which it is kept: days, which a person counts by the calendar. 0: nobody said."""

    @property
    def remains_s(self) -> float | None:
        """Seconds that are left of it, negative when it is over; None: nobody said."""
        return self.until_s - time.time() if self.until_s else None


def note_left(room: Room, left: Left) -> None:
    """Write the note, whole. Raises SandboxError."""
    temporary = room.folder / "left.tmp"
    try:
        temporary.write_text(json.dumps(asdict(left)))
        temporary.rename(room.folder / NOTE)
    except OSError as error:
        raise SandboxError(f"{room.folder / NOTE} cannot be written: {error.strerror}") from error


def read_left(folder: Path) -> Left | None:
    """The note of a room; None where it was not left running."""
    try:
        return Left(**json.loads((folder / NOTE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise SandboxError(f"{folder / NOTE} is damaged ({error}); job=reap removes the sandbox") from error
