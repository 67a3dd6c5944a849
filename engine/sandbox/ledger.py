"""Who runs which sandboxes, so that none outlives its run.

    CACHE/sandboxes/OWNER/SESSION/lock     locked by the process for as long as it lives, however it ends
    CACHE/sandboxes/OWNER/SESSION/service  link to the folder of podman's service, where there is one
    CACHE/sandboxes/OWNER/SESSION/ROOM/…   one room per sandbox (see rooms); `left.json` in it: left running (see left)

Liveness is the lock, not a process id: the kernel drops it with the process, and it holds between containers that
share the cache. Of a session whose lock is held nothing is reaped but what is over its time and should have been ended
by its owner, who hangs (see lifetime); a sandbox that was left running on purpose is reaped when its time is over, or
by who asks for those too.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.sandbox.left import NOTE, read_left
from engine.sandbox.lifetime import OWNERS_S, is_over, words
from engine.sandbox.rooms import Room, dismantle, end_starters, read_record


class Session:
    """One process's claim to its sandboxes."""

    def __init__(self, owner: str) -> None:
        """Open it. Raises SandboxError when the cache cannot be written."""
        self.owner = owner
        try:
            with _ledger_lock():
                self.folder = _owner_folder(owner) / secrets.token_hex(4)
                self.folder.mkdir(mode=0o700, parents=True)
                self._lock = (self.folder / "lock").open("w")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SandboxError(f"cannot keep records of sandboxes under {_base()}: {error.strerror}") from error

    def room(self, name: str) -> Room:
        """A new empty room; its name is unique even where `name` is not."""
        folder = self.folder / f"{_slug(name)}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        return Room(folder=folder)

    def close(self) -> None:
        """Remove the rooms that are left, then give the claim up. Raises SandboxError naming what stays."""
        if self._lock.closed:
            return
        with _ledger_lock():
            _, problems = _reap_session(self.folder)
            self._lock.close()
        if problems:
            raise SandboxError(f"not removed, to be tried again by the next start: {'; '.join(problems)}")


def reap(owner: str | None) -> tuple[str, ...]:
    """Remove every sandbox whose process is gone: of one owner, or (None) of all; returns their names.

    Raises SandboxError naming what could not be removed, after having tried everything."""
    reaped, problems = reap_sessions(owner)
    if problems:
        raise SandboxError(f"leftovers of a dead run remain: {'; '.join(problems)}")
    return tuple(reaped)


def left_rooms() -> list[Path]:
    """The folders of all sandboxes that were left running."""
    return [note.parent for note in _base().glob(f"*/*/*/{NOTE}")]


def remains(folder: Path) -> str:
    """How long a sandbox that was left running is kept yet, in words."""
    try:
        left = read_left(folder)
    except SandboxError:
        return "until job=reap"
    if left is None or left.remains_s is None:
        return "until job=reap"
    return f"{words(left.remains_s)} more" if left.remains_s > 0 else "no longer"


def reap_sessions(owner: str | None, *, left_too: bool = False) -> tuple[list[str], list[str]]:
    """As `reap`, for who has more to do: names, with what is out of the common, and what could not be removed and why.

    `left_too`: also what was left running on purpose and is within its time."""
    reaped: list[str] = []
    problems: list[str] = []
    if not _base().is_dir():
        return reaped, problems
    with _ledger_lock():
        folders = [_owner_folder(owner)] if owner is not None else [path for path in _base().iterdir() if path.is_dir()]
        for session in [path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()]:
            try:
                with _abandoned(session) as abandoned:
                    names, trouble = _reap_session(session, left_too=left_too) if abandoned else _reap_expired(session)
            except OSError as error:
                names, trouble = [], [f"{session} ({error.strerror})"]
            reaped += names
            problems += trouble
    return reaped, problems


def _reap_session(session: Path, *, left_too: bool = False) -> tuple[list[str], list[str]]:
    reaped, problems = [], []
    rooms = _rooms(session)
    left = [] if left_too else [folder for folder in rooms if _is_kept(folder)]
    if not left:
        end_starters(session)
    for folder in rooms:
        if folder in left:
            continue
        try:
            reaped.append(_remove(folder))
        except (SandboxError, OSError) as error:
            problems.append(str(error))
    if not problems:
        service = session / "service"
        if service.is_symlink():
            shutil.rmtree(service.readlink(), ignore_errors=True)
        if left:
            return reaped, problems
        shutil.rmtree(session)
        with contextlib.suppress(OSError):
            session.parent.rmdir()
    return reaped, problems


def _reap_expired(session: Path) -> tuple[list[str], list[str]]:
    """Of a session that is somebody's: what its owner should have ended."""
    reaped, problems = [], []
    for folder in _rooms(session):
        try:
            record = read_record(folder)
            if (folder / NOTE).exists() or record is None or not is_over(record.ends_s, record.boot, beyond_s=OWNERS_S):
                continue
            end_starters(folder)
            reaped.append(f"{_remove(folder)} (over its time, and its owner, who lives, did not end it)")
        except (SandboxError, OSError) as error:
            problems.append(str(error))
    return reaped, problems


def _remove(folder: Path) -> str:
    """Undo the sandbox of a room; returns its name."""
    record = read_record(folder)
    dismantle(folder)
    return record.name if record else folder.name


def _rooms(session: Path) -> list[Path]:
    return [path for path in session.iterdir() if path.is_dir() and not path.is_symlink()]


def _is_kept(folder: Path) -> bool:
    """Whether it was left running and is within its time; one whose note cannot be read is kept."""
    try:
        left = read_left(folder)
    except SandboxError:
        return True
    return left is not None and (left.remains_s is None or left.remains_s > 0)


@contextlib.contextmanager
def _abandoned(session: Path) -> Iterator[bool]:
    """Whether nobody holds a session's lock; it is held here meanwhile."""
    with (session / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def _ledger_lock() -> Iterator[None]:
    """One process at a time opens, closes or reaps sessions."""
    _base().mkdir(parents=True, exist_ok=True)
    with (_base() / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _base() -> Path:
    return cache_dir() / "sandboxes"


def _owner_folder(owner: str) -> Path:
    return _base() / f"{_slug(owner)}-{hashlib.sha256(os.fsencode(owner)).hexdigest()[:8]}"


def _slug(name: str) -> str:
    """A name for files and containers: at most 48 plain characters."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:48] or "x"
