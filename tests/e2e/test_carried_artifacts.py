"""Artefacts beside the patch, through whole trials: carried to the grading sandbox, bounded, kept, graded again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from artifact_task import artifact_draft
from harness_pieces import task_image
from record_pieces import a_trial
from shell_trials import shell_workshop

from engine.core.patch import make
from engine.core.records import Artifact, Finding, Scored, Task
from engine.run.trial import Workshop, run_trial
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer
from engine.tasks.harbor import read_task, write_task

FIX = "sed -i 's/a - b/a + b/' calc/__init__.py"
ANSWER = "mkdir -p build; printf '\\000\\377 forty-two' > build/answer.bin"
TOOL = "mkdir -p /tmp/out/bin; printf '#!/bin/sh\\necho tool\\n' > /tmp/out/bin/tool; chmod +x /tmp/out/bin/tool"
HONEST = (FIX, ANSWER, TOOL)
COMMANDS: Sequence[tuple[str, ...]] = (
    HONEST,
    (FIX,),
    (FIX, TOOL, "mkdir build; ln -s /etc/hostname build/answer.bin"),
    (FIX, ANSWER, "mkdir -p /tmp/elsewhere; ln -s /tmp/elsewhere /tmp/out"),
    (*HONEST, "head -c 3000000 /dev/zero > build/log.bin; mkfifo build/pipe"),
    (*HONEST, "printf 'raise SystemExit(0)' > build/conftest.py; for i in $(seq 40); do echo > /tmp/out/z$i; done"),
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return read_task(write_task(artifact_draft(task_image()), tmp_path / "calc"), split="train", image=task_image())


@pytest.fixture(params=["bubblewrap", pytest.param("podman", marks=pytest.mark.podman)])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workshop]:
    bounds = ("verify.artifact_mb=1", "verify.artifact_files=20")
    async with shell_workshop(request.param, COMMANDS, tmp_path / "scratch", *bounds) as started:
        yield started


def rewarded(scored: Scored) -> float:
    assert scored.verdict is not None, scored.trajectory.reason
    return scored.verdict.reward


def told(scored: Scored) -> dict[str, tuple[str, ...]]:
    findings: tuple[Finding, ...] = (*scored.trajectory.findings, *(scored.verdict.findings if scored.verdict else ()))
    return {one.detail: one.paths for one in findings if one.acted}


async def test_what_is_declared_is_graded_and_nothing_else_and_nobody_is_excluded(
    shop: Workshop, task: Task, tmp_path: Path
) -> None:
    trials = [a_trial(task, sample=number, harness="mini_swe_agent") for number in range(len(COMMANDS))]
    honest, without, link, way, large, many = await asyncio.gather(*(run_trial(trial, shop) for trial in trials))
    assert (rewarded(honest), told(honest)) == (1.0, {})
    assert honest.trajectory.patch is not None and task.reference is not None
    assert honest.trajectory.patch.artifacts == task.reference.artifacts
    assert (rewarded(without), told(without)) == (0.0, {})
    assert rewarded(link) == 0.0
    assert told(link)["not carried over: a link"] == ("/testbed/build/answer.bin",)
    assert rewarded(way) == 0.0  # a folder behind a link is not there
    assert rewarded(large) == 1.0, "the largest is left out, and what the tests want is not"
    assert told(large)["not carried over: over 20 files or 1 MiB together"] == ("/testbed/build/log.bin",)
    assert large.trajectory.patch is not None  # nor is what is no file there
    assert large.trajectory.patch.artifacts == task.reference.artifacts
    assert rewarded(many) == 1.0, many.verdict
    assert told(many)["artefacts in place of tests and conftest.py were not graded"] == ("/testbed/build/conftest.py",)
    assert len(told(many)["not carried over: over 20 files or 1 MiB together"]) >= 20

    # kept by contents, and graded again to the same verdict
    layout = Layout(root=tmp_path / "run")
    for scored in (honest, many):
        Writer(layout).trial(0, scored)
    names = {path.name for path in layout.artifact("x").parent.iterdir()}
    assert len(names) == 4  # answer, tool, conftest, and the line feed of all others
    reader = Reader(layout)
    row = reader.row(0, "train", str(honest.trajectory.trial.key), ("artifacts",))
    back = reader.artifacts(row["artifacts"])
    assert back == task.reference.artifacts
    again = await shop.verifier.grade(task, honest.trajectory.patch, shop.sandboxes, shop.images, "again")
    assert again.resolved


async def test_the_reference_passes_with_its_own_and_the_untouched_base_does_not(shop: Workshop, task: Task) -> None:
    assert task.reference is not None
    patches = (task.reference, make(task.reference.changes), make([]))
    verdicts = [await shop.verifier.grade(task, patch, shop.sandboxes, shop.images, "try") for patch in patches]
    assert [verdict.resolved for verdict in verdicts] == [True, False, False], verdicts[0].evidence


async def test_what_cannot_be_laid_is_told_and_excludes_nothing(shop: Workshop, task: Task) -> None:
    """`/var/run` is a link of the image; what is not declared is not laid at all."""
    assert task.reference is not None
    made = (Artifact(path="/var/run/x", contents=b""), Artifact(path="/tmp/other", contents=b""))
    patch = replace(task.reference, artifacts=(*task.reference.artifacts, *made))
    odd = replace(task, artifacts=(*task.artifacts, "/var/run/x"))
    verdict = await shop.verifier.grade(odd, patch, shop.sandboxes, shop.images, "odd")
    assert verdict.resolved, verdict.evidence
    found = {one.detail.partition(":")[0]: one.paths for one in verdict.findings}
    assert found == {
        "artefacts could not be laid": ("/var/run/x",),
        "artefacts that the task does not declare were not graded": ("/tmp/other",),
    }
