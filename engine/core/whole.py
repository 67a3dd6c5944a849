"""Files and folders that appear whole or not at all, also after `kill -9`, on a full disk and after a power cut.

Invariant: what a function here has written is on the disk when it returns, and so are its name and those of the folders
that it made; a name never leads to less than the whole. So what stood for it until then (an older checkpoint, routed
experts) may be deleted, and a state that promises it be written, without another thought.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from engine.core.errors import ConfigError, RunError

_DRAFT = re.compile(r"\..+\.draft-[0-9a-f]{8}")


def check_free(key: str, path: Path, kind: str = "file") -> None:
    """Raise ConfigError, which names `key`, where something is there already: what was written is never replaced."""
    if path.exists() or path.is_symlink():
        raise ConfigError(key, str(path), "is there already", f"name another {kind} with {key}, or remove this one")


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
    """Write `data` to `path` so that a reader, or a restart, sees the old file or the new one.

    Raises RunError where the disk does not take it."""
    with writing_whole(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """The same for what is written piece by piece: `path` appears when the block ends, and not if it raises."""
    draft = draft_of(path)
    with _told(path):
        make_folder(path.parent)
        try:
            with draft.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(path.parent)


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines, all or none. What a kill cut off before stays a line of its own, for readers to drop.

    Raises RunError where the disk does not take them."""
    with _told(path):
        make_folder(path.parent)
        with path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            cut = file.read(1) not in (b"", b"\n")
            try:
                file.write((b"\n" if cut else b"") + lines.encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
        if not size:
            _sync_folder(path.parent)


def replace_folder(draft: Path, path: Path) -> None:
    """Rename the finished folder into place; an older one of that name is deleted once the new one is there."""
    _sync_tree(draft)
    replaced = draft_of(path)
    if path.exists():
        path.rename(replaced)
    draft.rename(path)
    _sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def move_into_place(draft: Path, path: Path) -> None:
    """Rename the finished folder into place; another process may have been first with the same bytes."""
    _sync_tree(draft)
    try:
        draft.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    _sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are not there yet."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync_folder(path.parent)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; once it can, the same command goes on") from error


def _sync_tree(root: Path) -> None:
    """All files and folders of a tree that others than this module have written: a third of a millisecond each."""
    for name, _, files in os.walk(root):
        folder = Path(name)
        for file in files:
            if stat.S_ISREG((folder / file).lstat().st_mode):
                _sync(folder / file)
        _sync_folder(folder)


def _sync_folder(path: Path) -> None:
    """The names in a folder. Some network file systems cannot, and keep names by themselves."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
