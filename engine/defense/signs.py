"""Notes signs of an attack on the grader in what a patch adds. It changes nothing: what it finds is for people to read.

Invariant: the patch stays as it is, so that honest code which looks suspicious costs nothing. A sign that stands in a
file already is the base's own, and not noted.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.core.records import FileChange, Finding, Patch, Task
from engine.defense.stage import Stage

NAME = "signs"


class Signs(Stage):
    """Patterns that no fix needs (`contracts.Defense`).

    Args:
        added: what it is a sign of → regular expression, looked for in the lines that a patch adds to a file.
        paths: the same, looked for in the paths of files that it adds.
    """

    name = NAME

    def __init__(self, *, added: Mapping[str, str], paths: Mapping[str, str]) -> None:
        self.added = added
        self.paths = paths

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """One finding for each kind of sign; the patch is returned as it came."""
        found: dict[str, list[str]] = {}
        for change in patch.changes:
            text = _added(change)
            signs = [sign for sign, pattern in self.added.items() if re.search(pattern, text)]
            if change.before is None:
                signs += [sign for sign, pattern in self.paths.items() if re.search(pattern, change.path)]
            for sign in signs:
                found.setdefault(sign, []).append(change.path)
        return patch, tuple(
            Finding(stage=NAME, phase="extract", detail=f"looks like an attack: {sign}", paths=tuple(paths))
            for sign, paths in found.items()
        )


def _added(change: FileChange) -> str:
    """Lines that were not in the file before."""
    known = set((change.before or b"").decode(errors="replace").splitlines())
    lines = (change.after or b"").decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line not in known)
