"""Notes signs of an attack, in what a patch adds and in what the policy said. What it finds is for people to read.

Invariant: nothing is changed, so that honest work which looks suspicious costs nothing. A sign that stands in a file
already is the base's own, and not noted.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.core.records import Exchange, FileChange, Finding, Patch, Task
from engine.core.task_contracts import Mode
from engine.defense.stage import Stage

NAME = "signs"


class Signs(Stage):
    """Patterns that no fix needs (`task_contracts.Defense`).

    Args:
        mode: it never enforces, so observe or off.
        added: what it is a sign of → regular expression, looked for in the lines that a patch adds to a file.
        paths: the same, looked for in the paths of files that it adds.
        said: the same, looked for in the policy's answers, as they were sent (quotes in arguments are escaped there).
    """

    name = NAME

    def __init__(
        self, *, mode: Mode, added: Mapping[str, str], paths: Mapping[str, str], said: Mapping[str, str]
    ) -> None:
        self.mode = mode
        self.added = added
        self.paths = paths
        self.said = said

    def review(self, exchanges: Sequence[Exchange]) -> Sequence[Finding]:
        """One finding for each kind of sign, with the number of the first call that shows it."""
        policy = [exchange.response for exchange in exchanges if exchange.kind == "policy"]
        firsts = {
            sign: next((number for number, text in enumerate(policy, start=1) if re.search(pattern, text)), None)
            for sign, pattern in self.said.items()
        }
        return [
            Finding(stage=NAME, phase="agent", detail=f"looks like an attack: {sign} (call {number})")
            for sign, number in firsts.items()
            if number is not None
        ]

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
