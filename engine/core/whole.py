"""Files and folders that appear whole or not at all, also after `kill -9` and on a full disk."""

import os
import secrets
from pathlib import Path

from engine.core.errors import RunError


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a restart after `kill -9`, sees the old file or the new one.

    Raises RunError where the disk does not take it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; once it can, the same command goes on") from error


def move_into_place(draft: Path, path: Path) -> None:
    """Rename the finished folder into place; another process may have been first with the same bytes."""
    try:
        draft.rename(path)
    except OSError:
        if not path.is_dir():
            raise
