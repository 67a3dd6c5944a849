"""Whether a reward of 0 is the patch's doing: where a test that nothing should have touched does not hold, or one never
came to an outcome, the known fix is graded at once in the same way.

Invariant: an environment that broke (a damaged image, a machine too slow for the task's limits) is no verdict, and no
agent can bring that about: the control has a sandbox of its own, into which nothing of an agent comes.
Refuses (GraderError) when the control does not pass. A task without a reference is held against its untouched base.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from engine.core.errors import GraderError
from engine.core.naming import first
from engine.core.patch import make
from engine.core.records import Patch, Task, TestResult, Verdict

Grade = Callable[[Patch], Awaitable[Verdict]]
"""Grades a patch of the task in a fresh sandbox."""
_NAMED = 3


async def confirmed(task: Task, verdict: Verdict, grade: Grade) -> Verdict:
    """The verdict, once the control speaks for the environment where that is in doubt. Raises EnvironmentFailure."""
    if verdict.reward > 0 or not any(map(_is_doubtful, verdict.tests)):
        return verdict
    what = "the untouched base" if task.reference is None else "the reference"
    control = await grade(make([]) if task.reference is None else task.reference)
    wrong = [test.id for test in control.tests if not test.ok and (task.reference or test.kind == "pass_to_pass")]
    if wrong:
        raise GraderError(
            f"task {task.id}: graded at the same time {what} does not pass either ({first(wrong, _NAMED)}):"
            f" {' '.join(control.evidence.split())[-300:]}"
        )
    return replace(verdict, evidence=f"{verdict.evidence}\n{what}, graded at the same time, passes here\n")


def _is_doubtful(test: TestResult) -> bool:
    """Whether a broken environment looks like this; a target test that fails is what an unsolved task looks like."""
    return not test.ok and (test.kind == "pass_to_pass" or test.outcome in ("missing", "error"))
