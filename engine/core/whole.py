"""Files and folders that appear whole or not at all, also after `kill -9` and on a full disk."""

import os
import re
import secrets
import shutil
import time
from pathlib import Path

from engine.core.errors import RunError

_DRAFT = re.compile(r"\..+\.draft-[0-9a-f]{8}")


def draft_of(path: Path) -> Path:
    """A new name beside `path`, for what will be renamed to it once it is whole."""
    return path.with_name(f".{path.name}.draft-{secrets.token_hex(4)}")


def remove_drafts(root: Path, older_than_s: float = 0.0) -> list[Path]:
    """Remove what killed writers left anywhere below `root`. An age spares the drafts of those who write there now."""
    latest = time.time() - older_than_s
    removed = []
    for path in list(root.rglob(".*.draft-*")):
        if _DRAFT.fullmatch(path.name) and path.lstat().st_mtime <= latest:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            removed.append(path)
    return removed


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a restart after `kill -9`, sees the old file or the new one.

    Raises RunError where the disk does not take it."""
    draft = draft_of(path)
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
