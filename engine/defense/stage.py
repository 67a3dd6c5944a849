"""What every defence is unless it says otherwise: one that does nothing in a phase."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.core.contracts import Sandbox
from engine.core.records import Exchange, Finding, Patch, Task
from engine.core.task_contracts import Mode

NAMED = 50
"""Paths that a finding names at most."""


def printable(paths: Sequence[str]) -> tuple[str, ...]:
    """The first names, as text that can be stored: an agent's need not be Unicode."""
    return tuple(path.encode("utf-8", "backslashreplace").decode() for path in paths[:NAMED])


def refusals(stage: str, said: str, refused: Mapping[str, Sequence[str]]) -> tuple[Finding, ...]:
    """What was not taken out of the agent's sandbox, whatever the configuration: paths by reason."""
    return tuple(
        Finding(stage=stage, phase="extract", detail=f"{said}: {reason}", paths=printable(paths), acted=True)
        for reason, paths in sorted(refused.items())
        if paths
    )


class Stage:
    """Base of the defences; a defence overrides the phases in which it acts (`task_contracts.Defense`)."""

    name: str
    mode: Mode

    def finding(self, phase: str, detail: str, paths: Sequence[str] = ()) -> Finding:
        """What this defence found: the same in every mode, but for whether it acted."""
        return Finding(
            stage=self.name, phase=phase, detail=detail, paths=printable(paths), acted=self.mode == "enforce"
        )

    async def inspect(self, task: Task, root: Path) -> Sequence[Finding]:
        """Over what the agent will see, on the host, before anything else."""
        return ()

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """Over the staged repository on the host, before it enters the sandbox."""
        return ()

    async def settle(self, task: Task, sandbox: Sandbox, outlived: int) -> Sequence[Finding]:
        """After the harness ended and what outlived it was killed, before the tree is read."""
        return ()

    def review(self, exchanges: Sequence[Exchange]) -> Sequence[Finding]:
        """Over what was said between harness and model."""
        return ()

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """Over the patch made from the agent's tree."""
        return patch, ()
