"""A grader that takes a task's reference as it would take an agent's work: what the defences leave of it.

A reference that only passes as it is written makes a task that no agent can solve: its fix may lie in what a patch does
not hold (links, binary or large files), or in what counts as an edit of tests. Other patches are graded as they are.
"""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace

from engine.core.contracts import ImageStore, SandboxRuntime
from engine.core.patch import apply_patch
from engine.core.records import Finding, Patch, Task, Verdict
from engine.core.specs import ImageSpec
from engine.core.task_contracts import Defense, Verifier
from engine.core.temporary import temporary_folder
from engine.defense.artifacts import artifacts_within
from engine.defense.patch_by_contents import make_patch


class HandedIn:
    """The Verifier of task_contracts.py, around another."""

    def __init__(self, verifier: Verifier, defenses: Sequence[Defense]) -> None:
        self._verifier, self._defenses = verifier, defenses
        self.artifact_files, self.artifact_mb = verifier.artifact_files, verifier.artifact_mb

    def toolchain(self) -> ImageSpec:
        return self._verifier.toolchain()

    def varied(self, seed: int, *, shuffled: bool) -> "HandedIn":
        return HandedIn(self._verifier.varied(seed, shuffled=shuffled), self._defenses)

    async def grade(self, task: Task, patch: Patch, runtime: SandboxRuntime, images: ImageStore, name: str) -> Verdict:
        """As the grader within; the evidence says what was left out of a reference that fails."""
        if patch != task.reference:
            return await self._verifier.grade(task, patch, runtime, images, name)
        left, findings = await asyncio.to_thread(hand_in, task, patch, self._defenses)
        verdict = await self._verifier.grade(task, left, runtime, images, name)
        if verdict.resolved or left == patch:
            return verdict
        lost = "; ".join(f"{finding.detail}: {', '.join(finding.paths)}" for finding in findings)
        return replace(verdict, tests=(), evidence=f"an agent could not hand it in: {lost}\n{verdict.evidence}")


def hand_in(task: Task, patch: Patch, defenses: Sequence[Defense]) -> tuple[Patch, list[Finding]]:
    """What would be graded if an agent left this patch's tree, and what was said on the way."""
    with temporary_folder("handed-in") as folder:
        tree = folder / "tree"
        shutil.copytree(task.repository, tree, symlinks=True)
        apply_patch(patch, tree)
        left, found = make_patch(task.repository, tree, artifacts_within(task))
        findings = list(found)
        for defense in defenses:
            left, seen = defense.extract(task, tree, left)
            findings += seen
    return replace(left, artifacts=patch.artifacts), findings
