"""Makes the patch: the tree that the agent left is compared with the base, file by file, by contents.

Invariant: version control is never asked (an agent owns its `.git`), no link is followed, nothing is run. Only text
enters a patch, in UTF-8 or, where the base has it so, in an encoding of its own; links, special files, other names of
one file (hard links), binary or oversized contents and names that are not UTF-8 are refused, each with a finding, and
what the base holds there stays. By-products of running Python are dropped without a word.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from engine.core.patch import difference, may_hold, read_tree, under, walk_files, without
from engine.core.records import Finding, Patch, Task
from engine.core.task_contracts import Mode
from engine.defense.history import find_history
from engine.defense.stage import Stage, refusals

NAME = "patch_by_contents"
MAX_FILE_BYTES = 4 << 20
"""A single file beyond this is refused."""
MAX_TAKEN_BYTES = 64 << 20
"""All contents that are new beyond this are refused: they are held in memory."""
_FILE_BYTES = 256
"""What a changed file costs of a patch's bound beside its contents: a name, and a file where it is graded."""
_BYPRODUCTS = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"})
_BYPRODUCT_SUFFIXES = (".pyc", ".pyo")


def make_patch(base: Path, tree: Path, beside: Sequence[str] = ()) -> tuple[Patch, tuple[Finding, ...]]:
    """What turns `base` into `tree` (both host folders), and what was refused. `beside`: paths in them that are carried
    as artefacts, and so are no part of a patch."""
    held_before = {path: held for path, held in read_tree(base).items() if not under(path, beside)}
    history = find_history(base, walk_files(base))
    before = {path: held for path, held in held_before.items() if not under(path, history) and may_hold(path)}
    after: dict[str, tuple[bytes, bool]] = {}
    refused: dict[str, list[str]] = {}
    taken = 0
    for path, info in walk_files(tree):
        if under(path, (*beside, ".git")) or (path not in before and (path in held_before or _is_byproduct(path))):
            continue  # the engine's own repository, history that was left to it, and what running Python leaves behind
        reason, held = _take(tree / path, path, info, before)
        taken += len(held[0]) if held is not None and held is not before.get(path) else 0
        if taken > MAX_TAKEN_BYTES and held is not None and path not in before:
            reason, held = f"beyond {MAX_TAKEN_BYTES >> 20} MiB of new contents", None
        if reason:
            refused.setdefault(reason, []).append(path)
        if held is not None:
            after[path] = held
        elif reason and path in before:
            after[path] = before[path]
    lost = [path for path in before if path not in after and _below_refused(path, refused)]
    after.update({path: before[path] for path in lost})
    return difference(before, after), refusals(NAME, "not taken into the patch", refused)


def _take(
    file: Path, path: str, info: os.stat_result, before: Mapping[str, tuple[bytes, bool]]
) -> tuple[str, tuple[bytes, bool] | None]:
    """(why it is refused, or an empty text; contents and mode where they are taken)."""
    if not stat.S_ISREG(info.st_mode):
        return "a link" if stat.S_ISLNK(info.st_mode) else "a special file", None
    if not may_hold(path):
        return "a name that a patch may not hold", None
    if info.st_nlink > 1:
        return "a file with several names", None
    if info.st_size > MAX_FILE_BYTES:
        return f"over {MAX_FILE_BYTES >> 20} MiB", None
    data, executable = file.read_bytes(), bool(info.st_mode & stat.S_IXUSR)
    if path in before and before[path][0] == data:
        return "", before[path]
    if not is_text(data) and not _own_encoding(data, before.get(path)):
        return "not text", None
    return "", (data, executable)


def is_text(data: bytes) -> bool:
    """UTF-8 without NUL."""
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _own_encoding(data: bytes, before: tuple[bytes, bool] | None) -> bool:
    """Whether it is a change to a text of the base that is in another encoding than UTF-8."""
    return before is not None and not is_text(before[0]) and b"\0" not in before[0] and b"\0" not in data


def _is_byproduct(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return any(part in _BYPRODUCTS for part in parts[:-1]) or parts[-1].endswith(_BYPRODUCT_SUFFIXES)


def _below_refused(path: str, refused: Mapping[str, Sequence[str]]) -> bool:
    """Whether a folder of the base was replaced by something refused (a link): its files count as unchanged."""
    return any(path.startswith(other + "/") for paths in refused.values() for other in paths)


class PatchByContents(Stage):
    """The bound on a patch's size (`task_contracts.Defense`); what may be in it is `make_patch`'s."""

    name = NAME

    def __init__(self, *, mode: Mode, max_patch_kb: int) -> None:
        self.mode = mode
        self.max_patch_kb = max_patch_kb

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """Leave out contents while the patch is over its bound, new files before changed ones and large before small:
        data and logs, not fixes."""
        sizes = {change.path: _FILE_BYTES + len(change.after or b"") for change in patch.changes}
        new = {change.path for change in patch.changes if change.before is None}
        total, dropped = sum(sizes.values()), list[str]()
        for path in sorted(sizes, key=lambda path: (path in new, sizes[path], path), reverse=True):
            if total <= self.max_patch_kb << 10:
                break
            dropped.append(path)
            total -= sizes[path]
        if not dropped:
            return patch, ()
        finding = self.finding("extract", f"patch over {self.max_patch_kb} KiB: its largest contents", dropped)
        return without(patch, dropped) if self.mode == "enforce" else patch, (finding,)
