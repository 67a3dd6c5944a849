"""Temporary folders that no killed process leaves for ever: whoever makes the next one of its kind removes them.

`remove_abandoned` does so without making one (`job=reap`). Invariant: a folder is removed by its maker, or by another
process of the same user once its maker is dead. Liveness is a lock that the kernel drops with the process; it is the
last thing to go, so that a removal that was cut short is finished by the next one. Before it has its lock, a folder's
name says who makes it.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"
_MAKER = re.compile(r"-(\d+)-[^-]+$")


@contextmanager
def temporary_folder(kind: str, below: Path | None = None) -> Iterator[Path]:
    """A new folder below the system's own for temporary files, or hidden `below` another one, which is made where it is
    missing. It holds a file `.lock`."""
    if below is not None:
        below.mkdir(parents=True, exist_ok=True)
    remove_abandoned(kind, below)
    folder = Path(tempfile.mkdtemp(prefix=f"{_prefix(kind, below)}{os.getpid()}-", dir=below))
    draft = folder / f"{_LOCK}.draft"
    try:
        with draft.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            draft.rename(folder / _LOCK)  # only a lock that is held has the name that others look for
            yield folder
    finally:
        with contextlib.suppress(OSError):
            _remove(folder)


def remove_abandoned(kind: str, below: Path | None = None, problems: list[str] | None = None) -> list[Path]:
    """Remove folders whose maker is dead, in the place where `temporary_folder` makes them; `*` stands for any kind.

    What cannot be removed is added to `problems`; whoever makes the next folder has none of it to mend."""
    removed = []
    place, name = below or Path(tempfile.gettempdir()), f"{_prefix(kind, below)}*"
    for folder in place.glob(name):
        try:
            if folder.lstat().st_uid == os.getuid() and _died_before_its_lock(folder):
                _remove(folder)
                removed.append(folder)
        except OSError:  # gone meanwhile, or no folder
            continue
    for lock in place.glob(f"{name}/{_LOCK}"):
        try:
            if lock.lstat().st_uid == os.getuid() and not lock.is_symlink():
                with lock.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(lock.parent)
                    removed.append(lock.parent)
        except (BlockingIOError, FileNotFoundError):  # held, or gone meanwhile
            continue
        except OSError as error:
            if problems is not None:
                problems.append(f"{lock.parent} ({error.strerror})")
    return removed


def _died_before_its_lock(folder: Path) -> bool:
    maker = _MAKER.search(folder.name)
    if maker is None or folder.is_symlink() or Path(f"/proc/{maker[1]}").exists():
        return False
    return not (folder / _LOCK).exists()


def _remove(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()
    (folder / _LOCK).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:  # a thread of the maker's still writes in it
        (folder / _LOCK).touch()
        raise


def _prefix(kind: str, below: Path | None) -> str:
    return f"{'' if below is None else '.'}lego-rl-{kind}-"
