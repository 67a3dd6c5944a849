"""Real grading for tests: bubblewrap, the task image, the toolchain, as the configuration names them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import calc_task
import pytest
import yaml

from engine.core.records import Patch, Task, Verdict
from engine.core.specs import ImageSpec
from engine.defense.test_edits_reverted import TestEditsReverted
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.tasks.release_pairs import ReleasePairs
from engine.verify.pytest_verifier import PytestVerifier

__all__ = ["Bench", "calc_task", "edits_reverted", "open_bench", "pool", "task_image"]
ROOT = Path(__file__).parents[2]


def configured(option: str, **changes: Any) -> Mapping[str, Any]:
    """The keyword arguments of a component as `configs/OPTION.yaml` gives them."""
    values = yaml.safe_load((ROOT / f"configs/{option}.yaml").read_text())
    return {key: value for key, value in (values | changes).items() if key != "_target_"}


def pool(**changes: Any) -> ReleasePairs:
    return ReleasePairs(**configured("tasks/release_pairs", **changes))


def task_image() -> ImageSpec:
    return pool().images()[0]


def edits_reverted() -> TestEditsReverted:
    stages = configured("defense/standard")["stages"]
    stage = next(stage for stage in stages if stage["_target_"].endswith(".TestEditsReverted"))
    return TestEditsReverted(mode="enforce", names=stage["names"], suffixes=stage["suffixes"])


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A started runtime and a verifier."""

    runtime: BubblewrapRuntime
    images: DebianImageStore
    verifier: PytestVerifier

    async def grade(self, task: Task, patch: Patch) -> Verdict:
        return await self.verifier.grade(task, patch, self.runtime, self.images, f"{task.id}-grade")


@asynccontextmanager
async def open_bench(owner: str, **changes: Any) -> AsyncIterator[Bench]:
    """Start the parts; skips, naming what is missing, where bubblewrap cannot run."""
    runtime = BubblewrapRuntime(**configured("sandbox/bubblewrap"))
    problems = runtime.problems()
    if problems:
        pytest.skip(f"bubblewrap: {problems[0]}")
    images = DebianImageStore()
    verifier = PytestVerifier(**configured("verify/pytest", slack_s=6, **changes))
    for image in (task_image(), verifier.toolchain()):
        await images.build(image, print)
    await runtime.start(images, owner)
    try:
        yield Bench(runtime=runtime, images=images, verifier=verifier)
    finally:
        await runtime.stop()
