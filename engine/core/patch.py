"""Patches by contents: made by comparing two trees, applied exactly or not at all.

Invariant: `apply_patch(difference(base, after), base)` gives the files of `after`, byte for byte. No version-control
program is run and no link is followed. Refuses paths that are absolute, climb (`..`), enter a `.git` folder, are not
UTF-8, hold the end of a line or pass through a link, and changes whose `before` is not what the tree holds:
`PatchError`.
"""

import difflib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from engine.core.errors import PatchError
from engine.core.records import FileChange, Patch

_ENDS_A_LINE = "\n\r"
"""In a name they would make other lines of a diff, and of whatever else shows it."""
_COMPARED = 25_000_000
"""Lines of one side times those of the other up to which they are compared line by line: whoever chooses both can make
that last for hours."""


def safe_path(path: str) -> str:
    """Returns `path` if it is a plain relative POSIX path of a file outside `.git`; else raises `PatchError`."""
    parts = PurePosixPath(path).parts
    if not path or path != str(PurePosixPath(path)) or "\0" in path or path.startswith("/") or path == ".":
        raise PatchError(f"patch path {path!r} is not a plain relative path")
    if any(character in path for character in _ENDS_A_LINE):
        raise PatchError(f"patch path {path!r} holds the end of a line")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise PatchError(f"patch path {path!r} is not UTF-8") from error
    if ".." in parts:
        raise PatchError(f"patch path {path!r} leaves the repository")
    if any(part.lower() == ".git" for part in parts):
        raise PatchError(f"patch path {path!r} lies in a .git folder")
    return path


def may_hold(path: str) -> bool:
    """Whether a patch can say anything of this path."""
    try:
        safe_path(path)
    except PatchError:
        return False
    return True


def under(path: str, roots: Iterable[str]) -> bool:
    """Whether `path` is one of `roots` or lies below one (all repository-relative POSIX paths)."""
    return any(root == "." or path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def walk_files(root: Path) -> list[tuple[str, os.stat_result]]:
    """Everything below `root` that is not a folder, sorted: (relative POSIX path, lstat). Links are not followed."""
    found: list[tuple[str, os.stat_result]] = []
    pending = [root]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    found.append((Path(entry.path).relative_to(root).as_posix(), entry.stat(follow_symlinks=False)))
    return sorted(found)


def read_tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    """Relative POSIX path → (contents, executable) of every regular file; anything else raises `PatchError`."""
    tree: dict[str, tuple[bytes, bool]] = {}
    for path, info in walk_files(root):
        if not stat.S_ISREG(info.st_mode):
            raise PatchError(f"{root / path} is not a regular file; links and special files are refused")
        tree[path] = ((root / path).read_bytes(), bool(info.st_mode & stat.S_IXUSR))
    return tree


def difference(before: Mapping[str, tuple[bytes, bool]], after: Mapping[str, tuple[bytes, bool]]) -> Patch:
    """The patch that turns `before` into `after` (both as `read_tree` gives them); a mere mode change is no change."""
    changes: list[FileChange] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if (old[0] if old else None) == (new[0] if new else None):
            continue
        changes.append(
            FileChange(
                path=safe_path(path),
                before=old[0] if old else None,
                after=new[0] if new else None,
                executable=bool(new and new[1]),
            )
        )
    return make(changes)


def make(changes: Iterable[FileChange]) -> Patch:
    """A patch of these changes, its diff rendered."""
    kept = tuple(changes)
    return Patch(changes=kept, diff="".join(render(change) for change in kept))


def without(patch: Patch, paths: Iterable[str]) -> Patch:
    """The same patch less the changes of these paths."""
    dropped = frozenset(paths)
    left = make(change for change in patch.changes if change.path not in dropped)
    return replace(left, artifacts=patch.artifacts)


def render(change: FileChange) -> str:
    """One file's unified diff, for people; contents that are not UTF-8 are only named."""
    try:
        old, new = _lines(change.before), _lines(change.after)
    except UnicodeDecodeError:
        return f"Binary file {change.path} differs\n"
    before = "/dev/null" if change.before is None else f"a/{change.path}"
    after = "/dev/null" if change.after is None else f"b/{change.path}"
    compare = difflib.unified_diff if len(old) * len(new) <= _COMPARED else _replaced
    lines = list(compare(old, new, before, after))
    if not lines:
        lines = [f"--- {before}\n", f"+++ {after}\n"]
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _replaced(old: list[str], new: list[str], before: str, after: str) -> Iterator[str]:
    """A diff that takes one side for the other but for what both begin and end with."""
    same = range(min(len(old), len(new)))
    head = next((number for number in same if old[number] != new[number]), len(same))
    tail = next((number for number in same[: len(same) - head] if old[~number] != new[~number]), len(same) - head)
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    if not gone and not come:
        return
    yield from (f"--- {before}\n", f"+++ {after}\n")
    places = (f"{head + bool(lines)},{len(lines)}" for lines in (gone, come))
    yield "@@ -{} +{} @@\n".format(*places)
    yield from (f"-{line}" for line in gone)
    yield from (f"+{line}" for line in come)


def _lines(data: bytes | None) -> list[str]:
    """Split at line feeds alone, as every reader of a diff does: a form feed, say, is content."""
    return re.findall(r"[^\n]*\n|[^\n]+", (data or b"").decode())


def apply_patch(patch: Patch, tree: Path) -> None:
    """Apply to a host tree. Everything is checked before anything is changed; deletions come first."""
    deleted = {change.path for change in patch.changes if change.after is None}
    for change in patch.changes:
        _check(tree, change, deleted)
    for change in patch.changes:
        if change.after is None:
            _remove(tree, change.path)
    for change in patch.changes:
        if change.after is not None:
            target = tree / change.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(change.after)
            target.chmod(0o755 if change.executable else 0o644)


def _check(tree: Path, change: FileChange, deleted: set[str]) -> None:
    """Raise `PatchError` unless the tree holds `before` at a path that no link or remaining file blocks."""
    parts = PurePosixPath(safe_path(change.path)).parts
    for depth in range(1, len(parts) + 1):
        step = "/".join(parts[:depth])
        info = _lstat(tree / step)
        if info is not None and stat.S_ISLNK(info.st_mode):
            raise PatchError(f"{change.path}: the way leads through the link {step}")
        if depth < len(parts) and info is not None and not stat.S_ISDIR(info.st_mode) and step not in deleted:
            raise PatchError(f"{change.path}: {step} is a file")
    target = tree / change.path
    held = target.read_bytes() if target.is_file() else None
    if held != change.before:
        raise PatchError(f"{change.path}: the tree does not hold what the patch was made against")
    if target.is_dir() and any(path not in deleted for path in _below(tree, target)):
        raise PatchError(f"{change.path}: is a folder with files that the patch does not delete")


def _below(tree: Path, folder: Path) -> list[str]:
    prefix = folder.relative_to(tree).as_posix()
    return [f"{prefix}/{path}" for path, _ in walk_files(folder)]


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove(tree: Path, path: str) -> None:
    """Delete a file and the folders that it leaves empty."""
    target = tree / path
    target.unlink()
    for parent in target.parents:
        if parent == tree or any(parent.iterdir()):
            return
        parent.rmdir()
