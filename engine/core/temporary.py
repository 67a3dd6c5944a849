"""Temporary folders that no killed process leaves for ever: whoever makes the next one of its kind removes them.

Invariant: a folder is removed by its maker, or by another process of the same user once its maker is dead. Liveness is
a lock that the kernel drops with the process.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A new folder below the system's own for temporary files; it holds a file `.lock`."""
    _remove_abandoned(kind)
    folder = Path(tempfile.mkdtemp(prefix=f"lego-rl-{kind}-"))
    draft = folder / ".lock.draft"
    try:
        with draft.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            draft.rename(folder / ".lock")  # only a lock that is held has the name that others look for
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(kind: str) -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"lego-rl-{kind}-*/.lock"):
        with contextlib.suppress(OSError):  # held, gone meanwhile, or somebody else's
            if lock.lstat().st_uid == os.getuid() and not lock.is_symlink():
                with lock.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent)
