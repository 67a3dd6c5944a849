"""`job=regrade`: what is graded again, how often, and what is said of verdicts that turned."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calc_task import change, patch_of
from record_pieces import a_task
from samples_cases import scored

from engine.core.errors import ConfigError, GraderError, RunError
from engine.core.records import Outcome, Patch, Task, TestResult, Verdict
from engine.run.jobs import regrade
from engine.store.layout import Layout
from engine.store.state import StateFile
from engine.store.writer import Writer

FIX = patch_of(change("a.py", b"1", b"2"))
Judge = Callable[[Task, Patch], Verdict]


def verdict(resolved: bool, outcome: Outcome = "passed") -> Verdict:
    tests = (TestResult(id="t.py::a", kind="fail_to_pass", outcome=outcome, ok=outcome == "passed"),)
    reward = float(resolved)
    return Verdict(reward=reward, resolved=resolved, tests=tests, evidence="why\nmore", findings=(), grade_s=0.0)


def honest(task: Task, patch: Patch) -> Verdict:
    return verdict(True) if patch.changes else verdict(False, "failed")


class Stand:
    """Sandboxes and verifier."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.graded, self.running = judge, list[tuple[str, int]](), 0

    async def start(self, images: Any, owner: str) -> None:
        self.running += 1

    async def stop(self) -> None:
        self.running -= 1

    async def grade(self, task: Task, patch: Patch, *_: Any) -> Verdict:
        assert self.running == 1
        self.graded.append((task.id, len(patch.changes)))
        return self.judge(task, patch)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Task t mended twice and once not, in two steps; u not; one trial without a verdict."""
    made = Layout(root=tmp_path / "run")
    writer = Writer(made)
    for step, name, sample, patch in [
        (0, "t", 0, FIX),
        (0, "t", 1, patch_of()),
        (1, "t", 2, FIX),
        (1, "u", 0, patch_of()),
    ]:
        one = scored(1.0, name, sample)
        trajectory = replace(one.trajectory, patch=patch)
        writer.trial(step, replace(one, trajectory=trajectory, verdict=honest(trajectory.trial.task, patch)))
    writer.trial(1, scored(None, "t", 3))
    StateFile(made).update("finished", step=1, steps=2)
    return made


@pytest.fixture(autouse=True)
def whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrade, "check_grading", lambda *_: None)


def run(layout: Layout, stand: Stand, *, tasks: tuple[str, ...] = ("t", "u"), **changes: Any) -> int:
    built: Any = SimpleNamespace(
        directory=layout.root,
        written=None,
        observe=SimpleNamespace(progress_interval_s=8),
        tasks=SimpleNamespace(load=lambda: tuple(a_task(id=name) for name in tasks)),
        config={"tasks": {"_target_": "a.Pool"}, "defense": {"at_most": "enforce", "stages": []}, "verify": {}},
        sandbox=stand,
        verify=stand,
        schedule=SimpleNamespace(concurrency=2),
    )
    job = regrade.RegradeJob(**({"run": None, "split": None, "step": None, "times": 1} | changes))
    return asyncio.run(job.run(built))


def test_equal_patches_are_graded_once_and_nothing_is_said_where_all_agree(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(layout.root.rglob("*"))
    stand = Stand(honest)
    assert run(layout, stand) == 0
    assert sorted(stand.graded) == [("t", 0), ("t", 1), ("u", 0)]
    assert capsys.readouterr().out.splitlines() == [
        "4 trials, 3 different patches, graded 1 × each",
        "all verdicts are what they were",
    ]
    assert stand.running == 0 and sorted(layout.root.rglob("*")) == before


def test_each_trial_of_a_patch_whose_verdict_turned_is_named(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    stand = Stand(lambda task, patch: verdict(False, "failed"))
    with pytest.raises(RunError, match="2 of 4 verdicts are not what they were"):
        run(layout, stand, times=3)
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [
        "train step 0 e0-t-s0-a0: reward 1, now 0: t.py::a passed → failed",
        "train step 1 e0-t-s2-a0: reward 1, now 0: t.py::a passed → failed",
    ]
    assert sorted(stand.graded) == [("t", 0)] * 3 + [("t", 1)] + [("u", 0)] * 3, "what turned once is known"
    assert stand.running == 0


def test_a_verdict_that_flips_is_found_by_grading_again(layout: Layout) -> None:
    graded: list[Patch] = []

    def flips(task: Task, patch: Patch) -> Verdict:
        graded.append(patch)
        return honest(task, patch) if graded.count(patch) < 3 or not patch.changes else verdict(False)

    assert run(layout, Stand(flips), step=0, times=2) == 0
    graded.clear()
    with pytest.raises(RunError, match="1 of 2 verdicts"):
        run(layout, Stand(flips), step=0, times=3)


def test_a_grader_that_breaks_gives_no_verdict(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(task: Task, patch: Patch) -> Verdict:
        if task.id == "u":
            raise GraderError("task u: the grader never got ready")
        return honest(task, patch)

    with pytest.raises(RunError, match="1 of 4"):
        run(layout, Stand(breaks))
    line = capsys.readouterr().out.splitlines()[0]
    assert line == "train step 1 e0-u-s0-a0: no verdict now: task u: the grader never got ready"


def test_tasks_that_are_others_here_are_passed_over(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    stand = Stand(honest)
    assert run(layout, stand, tasks=("u", "v")) == 0
    assert stand.graded == [("u", 0)]
    assert "1 trials, 1 different patches, graded 1 × each; 3 of tasks that are others" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"tasks='a\.Pool': has none of the 4 graded tasks of .*; give the run's"):
        run(layout, Stand(honest), tasks=("v",))


def test_a_choice_without_trials_is_refused(layout: Layout) -> None:
    with pytest.raises(ConfigError, match=r"job\.step=7: .* has no finished trial of it; name one from 0 to 1"):
        run(layout, Stand(honest), step=7)
