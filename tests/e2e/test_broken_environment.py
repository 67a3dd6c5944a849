"""An environment that broke is no reward of 0: the image lost a file that the tests need, and the fix is honest."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from calc_task import write_calc
from harness_pieces import task_image
from record_pieces import a_trial
from shell_trials import shell_workshop

from engine.core.records import Scored, Task, Termination
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.run.trial import Workshop, run_trial
from engine.sandbox.images import DebianImageStore

FIX = "sed -i 's/return a - b/return a + b/' calc/__init__.py"
BREAK = "sed -i 's/return a - b/return nothing/; s/a \\* b/nothing/' calc/__init__.py"
UNREADABLE = "echo 'def def' > calc/__init__.py"


class ShrinkingImages(DebianImageStore):
    """Has a second image, which is the tasks' less what somebody deleted from the cache."""

    def __init__(self, damaged: Path) -> None:
        super().__init__()
        self.damaged = damaged

    def path(self, spec: ImageSpec) -> Path:
        return self.damaged if spec.name == "damaged" else super().path(spec)


@pytest.fixture
def damaged() -> Iterator[Path]:
    whole = DebianImageStore().path(task_image())
    with temporary_folder("damaged", whole.parent) as beside:
        root = beside / "root"
        subprocess.run(["cp", "-al", str(whole), str(root)], check=True)
        for file in root.glob("usr/lib/python3*/**/colorsys*"):
            file.unlink()
        yield root


def task_that_needs(module: str, image: str, folder: Path) -> Task:
    folder.mkdir()
    task = write_calc(folder, replace(task_image(), name=image))
    tests = task.tests / "tests/test_calc.py"
    tests.write_text(f"import {module}\n{tests.read_text()}")
    return replace(task, grade_timeout_s=10.0)


async def play(shop: Workshop, task: Task, sample: int) -> Scored:
    return await run_trial(a_trial(task, sample=sample, harness="mini_swe_agent"), shop)


async def test_a_false_zero_is_an_exclusion_and_a_true_one_stays(tmp_path: Path, damaged: Path) -> None:
    commands = [[FIX], [FIX], [BREAK], [UNREADABLE]]
    images = ShrinkingImages(damaged)
    async with shell_workshop("bubblewrap", commands, tmp_path / "scratch", "verify.slack_s=6", images=images) as shop:
        lost = await play(shop, task_that_needs("colorsys", "damaged", tmp_path / "0"), 0)
        whole = task_that_needs("colorsys", task_image().name, tmp_path / "1")
        kept = [await play(shop, whole, sample) for sample in (1, 2, 3)]
    assert lost.trajectory.termination is Termination.GRADER_FAILED, lost.verdict
    assert lost.verdict is None and "colorsys" in lost.trajectory.reason
    verdicts = [one.verdict for one in kept]
    assert [verdict.reward for verdict in verdicts if verdict] == [1.0, 0.0, 0.0]
    assert all(verdict and "reference" in verdict.evidence for verdict in verdicts[1:])
