"""The pool of a user's own directories, whose tasks are tried before they are trained on."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from calc_task import write_calc

from engine.core.errors import ConfigErrors, GraderError
from engine.core.records import Patch, Task, TestResult, Verdict
from engine.core.task_contracts import DoubtedPool
from engine.tasks.directory import HarborDirectory

IMAGE = {"name": "calc", "suite": "bookworm", "packages": ["python3"], "pip": []}


def pool(path: Path, *validation: str) -> HarborDirectory:
    return HarborDirectory(path=str(path), validation=list(validation), image=IMAGE)


def test_tasks_are_found_and_split_by_name(tmp_path: Path) -> None:
    first, second = write_calc(tmp_path), write_calc(tmp_path / "x")
    second.directory.rename(tmp_path / "other")
    (tmp_path / "notes").mkdir()
    made = pool(tmp_path, "other")
    assert made.problems() == []
    assert [(task.id, task.split) for task in made.load()] == [("calc", "train"), ("other", "validation")]
    assert made.images()[0] == first.image


def test_a_folder_without_tasks_is_a_problem(tmp_path: Path) -> None:
    (problem,) = pool(tmp_path).problems()
    assert str(problem) == (
        f"tasks.path='{tmp_path}': no folder in it holds a task.toml; name the parent folder of Harbor task directories"
    )
    (problem,) = pool(tmp_path / "none").problems()
    assert "not a folder" in problem.problem


async def test_a_missing_folder_ends_a_prepare_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="is not a folder"):
        await pool(tmp_path / "none").prepare(print)


def test_an_unknown_held_out_name_is_a_problem(tmp_path: Path) -> None:
    write_calc(tmp_path)
    (problem,) = pool(tmp_path, "clac").problems()
    assert (problem.key, problem.value) == ("tasks.validation.0", "clac")
    assert "calc" in problem.way_out


class Verifier:
    """Resolves the reference, fails the base, unless it is told otherwise."""

    def __init__(self, *, good: bool = True, base: bool = False, breaks: bool = False) -> None:
        self.answers, self.breaks = {True: good, False: base}, breaks
        self.graded: list[str] = []

    async def grade(self, task: Task, patch: Patch, runtime: Any, images: Any, name: str) -> Verdict:
        self.graded.append(name)
        if self.breaks:
            raise GraderError("the toolchain is gone")
        resolved = self.answers[bool(patch.changes)]
        tests = tuple(
            TestResult(id=test, kind="fail_to_pass", outcome="passed" if resolved else "failed", ok=resolved)
            for test in task.fail_to_pass
        )
        return Verdict(reward=float(resolved), resolved=resolved, tests=tests, evidence="", findings=(), grade_s=0.0)


def doubts(made: HarborDirectory) -> list[str]:
    return [str(error) for error in made.doubts(made.load())]


async def audited(made: HarborDirectory, verifier: Verifier) -> list[str]:
    """The doubts that are left."""
    await made.audit(None, None, verifier, print)  # type: ignore[arg-type]
    return doubts(made)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HarborDirectory:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    write_calc(tmp_path / "tasks")
    return pool(tmp_path / "tasks")


async def test_a_task_that_was_not_tried_is_not_trained_on(made: HarborDirectory) -> None:
    assert isinstance(made, DoubtedPool)
    assert doubts(made) == [
        f"tasks.path='{made.path}': 1 of 1 tasks were not tried yet (calc); run the same command with job=prepare"
    ]
    verifier = Verifier()
    assert await audited(made, verifier) == []
    assert verifier.graded == ["prove-calc-reference", "prove-calc-base"]
    assert await audited(made, verifier) == []
    assert len(verifier.graded) == 2, "what holds is not tried twice"


async def test_a_task_whose_reference_fails_is_refused_until_it_is_mended(made: HarborDirectory) -> None:
    way_out = "mend the task, or move its folder away; then job=prepare"
    assert await audited(made, Verifier(good=False)) == [
        f"tasks.path='{made.path}': task calc: its reference does not pass (tests/test_calc.py::test_add failed); "
        + way_out
    ]
    assert await audited(made, Verifier()) == [], "tried again, in case it was the machine"
    code = Path(made.path) / "calc" / "solution" / "files" / "calc" / "__init__.py"
    code.write_text(code.read_text() + "# another reference\n")
    assert "1 of 1 tasks were not tried yet" in doubts(made)[0]


async def test_a_task_that_an_empty_patch_solves_is_refused(made: HarborDirectory) -> None:
    (doubt,) = await audited(made, Verifier(base=True))
    assert "task calc: its tests pass without any change, so there is nothing to solve; mend the task" in doubt


async def test_a_task_without_a_reference_is_tried_by_its_base(made: HarborDirectory) -> None:
    (task,) = made.load()
    verifier = Verifier()
    made.load = lambda: (dataclasses.replace(task, reference=None),)  # type: ignore[method-assign]
    assert await audited(made, verifier) == []
    assert verifier.graded == ["prove-calc-base"]


async def test_a_grader_that_breaks_says_nothing_of_the_task(made: HarborDirectory) -> None:
    with pytest.raises(GraderError):
        await made.audit(None, None, Verifier(breaks=True), print)  # type: ignore[arg-type]
    assert "not tried yet" in doubts(made)[0]
