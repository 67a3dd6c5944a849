"""A reward of 0 is doubted where a broken environment looks the same, and only there."""

from typing import Any

import pytest
from record_pieces import a_task

from engine.core.errors import GraderError, SandboxError
from engine.core.patch import make
from engine.core.records import FileChange, Outcome, Patch, Task, TestResult, Verdict
from engine.run.control import confirmed

FIX = make([FileChange(path="a.py", before=b"", after=b"x")])
GOOD: dict[str, Outcome] = {"f": "passed", "p": "passed"}


def verdict(**outcomes: Outcome) -> Verdict:
    """Of the target test f and of p, which must still pass."""
    kinds: dict[str, Any] = {"f": "fail_to_pass", "p": "pass_to_pass"}
    tests = tuple(
        TestResult(id=name, kind=kinds[name], outcome=outcome, ok=outcome == "passed")
        for name, outcome in outcomes.items()
    )
    good = all(test.ok for test in tests)
    return Verdict(reward=float(good), resolved=good, tests=tests, evidence="seen", findings=(), grade_s=0.0)


class Grader:
    """Gives one verdict, and notes the patches that it is asked for."""

    def __init__(self, answer: Verdict | Exception) -> None:
        self.answer, self.asked = answer, list[Patch]()

    async def __call__(self, patch: Patch) -> Verdict:
        self.asked.append(patch)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def task() -> Task:
    return a_task(reference=FIX)


@pytest.mark.parametrize("first", [GOOD, {"f": "failed", "p": "passed"}])
async def test_a_reward_and_an_unsolved_task_are_not_doubted(task: Task, first: dict[str, Outcome]) -> None:
    grader, given = Grader(verdict(**GOOD)), verdict(**first)
    assert await confirmed(task, given, grader) == given
    assert grader.asked == []


DOUBTFUL: list[dict[str, Outcome]] = [
    {"f": "missing", "p": "passed"},
    {"f": "error", "p": "passed"},
    {"f": "passed", "p": "missing"},
    {"f": "passed", "p": "failed"},
    {"f": "missing", "p": "missing"},
]


@pytest.mark.parametrize("first", DOUBTFUL)
@pytest.mark.parametrize("sound", [True, False])
async def test_where_the_reference_fails_as_well_there_is_no_verdict(
    task: Task, first: dict[str, Outcome], sound: bool
) -> None:
    """As on a machine that has become too slow for the task's limits: the last tests are missing for both."""
    grader = Grader(verdict(**GOOD) if sound else verdict(f="passed", p="missing"))
    if sound:
        told = await confirmed(task, verdict(**first), grader)
        assert told.reward == 0.0 and "the reference, graded at the same time, passes here" in told.evidence
    else:
        with pytest.raises(GraderError, match=r"the reference does not pass either \(p\): seen"):
            await confirmed(task, verdict(**first), grader)
    assert grader.asked == [FIX]


async def test_without_a_reference_the_base_must_hold_what_it_held(task: Task) -> None:
    task = a_task(reference=None)
    broken = verdict(f="failed", p="missing")
    grader = Grader(verdict(f="failed", p="passed"))
    assert (await confirmed(task, broken, grader)).reward == 0.0
    assert grader.asked == [make([])]
    with pytest.raises(GraderError, match="the untouched base does not pass either"):
        await confirmed(task, broken, Grader(broken))


async def test_a_control_that_comes_to_nothing_is_no_verdict(task: Task) -> None:
    with pytest.raises(SandboxError):
        await confirmed(task, verdict(f="missing", p="passed"), Grader(SandboxError("gone")))
