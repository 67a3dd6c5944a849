"""What counts as a trace of version control in a tree: a repository's data by its name, and what can give another state
back by what it holds (loose objects, packs, bundles, dumps), whatever it is called and wherever it lies.

Invariant: nothing is run, no link is followed, and of each file no more than its beginning is read.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from stat import S_ISREG

_SYSTEMS = frozenset({".git", ".hg", ".svn", ".bzr", "_darcs", ".jj"})
_BEGINS = (b"PACK\0\0\0", b"# v2 git bundle", b"# v3 git bundle", b"SVN-fs-dump-format-version", b"HG10", b"HG20")
"""Git's packs and bundles, dumps of Subversion, bundles of Mercurial."""
_LOOSE = re.compile(r"(?:^|/)[0-9a-f]{2}/(?:[0-9a-f]{38}|[0-9a-f]{62})$")
_ZLIB = b"\x78"
"""How a loose object begins, whatever it was compressed by."""
_HEAD = re.compile(rb"ref: refs/|[0-9a-f]{40}")
_READ_BYTES = 48
_FEWEST_BYTES = 16
"""Of a file that holds a state."""


def is_history(path: str) -> bool:
    """Whether a relative path lies in what is a repository, or a copy of one (`.git.orig`, `.git_backup`), by name."""
    return any(_is_repository(part.lower()) for part in PurePosixPath(path).parts)


def find_history(
    root: Path, walked: Iterable[tuple[str, os.stat_result]], unread: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The outermost paths that hold history, sorted, of a root's files (as `engine.core.patch.walk_files` gives them).
    `unread`: endings of names that are taken for what they say. Raises OSError."""
    found: set[str] = set()
    held: set[str] = set()
    heads: set[str] = set()
    for path, info in walked:
        if is_history(path):
            parts = path.split("/")
            found.add(next("/".join(parts[: i + 1]) for i in range(len(parts)) if is_history(parts[i])))
        elif S_ISREG(info.st_mode) and info.st_size >= _FEWEST_BYTES and not path.endswith(unread):
            begins = _beginning(root / path)
            if begins.startswith(_BEGINS):
                held.add(path)
            elif _LOOSE.search(path) and begins.startswith(_ZLIB):
                held.add(path.rsplit("/", 2)[0] if path.count("/") > 1 else path)
            elif path.endswith("/HEAD") and _HEAD.match(begins):
                heads.add(path.removesuffix("/HEAD"))
    return tuple(_outermost(found | {_repository(path, heads) for path in held}))


def _repository(path: str, heads: set[str]) -> str:
    """The folder of the repository that a stored object belongs to; itself where there is none."""
    return next((str(parent) for parent in reversed(PurePosixPath(path).parents) if str(parent) in heads), path)


def _outermost(paths: set[str]) -> list[str]:
    return sorted(path for path in paths if not any(str(parent) in paths for parent in PurePosixPath(path).parents))


def _beginning(file: Path) -> bytes:
    with file.open("rb", buffering=0) as opened:
        return opened.read(_READ_BYTES)


def _is_repository(part: str) -> bool:
    return part in _SYSTEMS or part.startswith((".git.", ".git-", ".git_", ".git~", ".hg."))
