"""`job=audit`: does each task of the pool judge what it claims? A verdict on every task, and the funnel of the pool.

    leaks            what the agent sees holds another copy of the fix (the defences' `inspect`)
    breaks           a grading came to no verdict
    reference fails  the reference patch does not pass
    flaky            it passes once and fails once: under another hash seed, or for no reason
    order            it fails when the tests are shuffled (only with `job.order=refuse`: a grader never shuffles them)
    nothing to do    the untouched base passes
    holds            none of these

Each task stands under the first that is true of it. Grades with the run's own verifier, and, after the first time,
with variations of it. What the tests try to reach, and those that need their order, is told beside the verdict. Starts
sandboxes and nothing else, and changes no pool: `tasks.names`, a folder or a selection leave tasks out.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from engine.config.built import Built
from engine.config.nearest import nearest
from engine.core.errors import ConfigError, EnvironmentFailure, RunError
from engine.core.naming import first
from engine.core.patch import make
from engine.core.records import Patch, Task, Verdict
from engine.core.task_contracts import Verifier
from engine.core.together import side_by_side
from engine.core.whole import check_free, write_whole
from engine.observe.progress import make_progress
from engine.run.handed_in import HandedIn
from engine.run.workbench import check_grading
from engine.sandbox.images import DebianImageStore
from engine.verify.pytest_verifier import REACHES

HOLDS = "holds"
FUNNEL = ("leaks", "breaks", "reference fails", "flaky", "order", "nothing to do")
"""What a task falls out for, in this order."""
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What is known of one task."""

    task: str
    split: str
    verdict: str
    why: str
    """One line; empty where it holds."""
    reference: str
    """`passed/graded`."""
    base: str
    reaches: str
    """What its tests tried to reach; empty: nothing."""
    order: str
    """Tests that fail with the reference when all are shuffled; empty: none."""


class AuditJob:
    """Tries every task.

    Args:
        names: ids of the tasks; empty: all of the pool.
        times: gradings of the reference, each after the first with another hash seed, and of the base.
        order: whether a task whose tests need their order is refused, or that is only noted.
        to: JSON file that the verdicts are written to; None: none.
    """

    def __init__(self, *, names: Sequence[str], times: int, order: Literal["note", "refuse"], to: str | None) -> None:
        self.names = names
        self.times = times
        self.order = order
        self.to = to

    async def run(self, built: Built) -> int:
        """Exit code 0 when every task holds. Raises RunError when one does not."""
        if self.to is not None:
            check_free("job.to", Path(self.to))
        images = DebianImageStore()
        check_grading(built, images)
        tasks = self._tasks(built.tasks.load())
        results: list[Audited] = []
        await built.sandbox.start(images, f"audit-{built.hash}")
        try:
            with make_progress(built.observe.progress_interval_s) as progress:

                async def one(task: Task) -> None:
                    results.append(await self._audit(built, images, task))
                    bad = sum(result.verdict != HOLDS for result in results)
                    progress.phase("auditing", len(results), len(tasks), f"{bad} do not hold" if bad else "all hold")

                progress.phase("auditing", 0, len(tasks), "")
                await side_by_side([partial(one, task) for task in tasks], built.schedule.concurrency)
        finally:
            await built.sandbox.stop()
        results.sort(key=lambda result: result.task)
        if self.to is not None:
            report = {"funnel": dict(funnel(results)), "tasks": [vars(result) for result in results]}
            write_whole(Path(self.to), (json.dumps(report, indent=1) + "\n").encode())
        print("\n".join(lines(results)))
        bad = sum(result.verdict != HOLDS for result in results)
        if bad:
            raise RunError(f"{bad} of {len(results)} tasks do not hold; leave them out of the pool, or mend them")
        return 0

    def _tasks(self, pool: Sequence[Task]) -> list[Task]:
        there = [task.id for task in pool]
        for name in self.names:
            if name not in there:
                guess = nearest(name, there)
                way_out = f"did you mean {guess}?" if guess else f"the pool has {len(there)} tasks, as {there[0]}"
                raise ConfigError("job.names", name, "the pool has no such task", way_out)
        return [task for task in pool if not self.names or task.id in self.names]

    async def _audit(self, built: Built, images: DebianImageStore, task: Task) -> Audited:
        good: list[Verdict] = []
        bad: list[Verdict] = []
        verdict, why, order = HOLDS, "", ""
        plain = HandedIn(built.verify, built.defense.stages)
        try:
            leak = await _leak(built, images, task)
            for patch, gradings in ((task.reference, good), (make([]), bad)):
                for number in range(self.times if patch is not None and not leak else 0):
                    grader = plain.varied(number, shuffled=False) if number else plain
                    assert patch is not None
                    gradings.append(await _grade(built, images, grader, task, patch))
            if good and all(graded.resolved for graded in good) and task.reference is not None:
                shuffled = plain.varied(self.times, shuffled=True)
                order = _failing(await _grade(built, images, shuffled, task, task.reference))
            verdict, why = _verdict(leak, good, bad, order if self.order == "refuse" else "")
        except EnvironmentFailure as failure:
            verdict, why = "breaks", str(failure)
        reached = [one.detail for graded in good for one in graded.findings if one.detail.startswith(REACHES)]
        return Audited(
            task=task.id,
            split=task.split,
            verdict=verdict,
            why=why,
            reference=f"{sum(graded.resolved for graded in good)}/{len(good)}",
            base=f"{sum(graded.resolved for graded in bad)}/{len(bad)}",
            reaches=reached[0] if reached else "",
            order=order,
        )


async def _grade(built: Built, images: DebianImageStore, grader: Verifier, task: Task, patch: Patch) -> Verdict:
    return await grader.grade(task, patch, built.sandbox, images, f"audit-{task.id}")


def _failing(graded: Verdict) -> str:
    """The tests that fail, or else the grader's own words; empty where it is resolved."""
    if graded.resolved:
        return ""
    tests = [test.id for test in graded.tests if not test.ok]
    return first(tests, _NAMED) or " ".join(graded.evidence.split())[:160]


async def _leak(built: Built, images: DebianImageStore, task: Task) -> str:
    """Why a defence would refuse the task for what its agent sees; empty where none does."""
    runtimes = [harness.mount(images).source for harness in built.harnesses.values()]
    roots = [images.path(task.image), *(runtime for runtime in runtimes if runtime.exists())]
    for defense, root in product(built.defense.stages, roots):
        try:
            await defense.inspect(task, root)
        except EnvironmentFailure as failure:
            return str(failure)
    return ""


def _verdict(leak: str, good: Sequence[Verdict], bad: Sequence[Verdict], order: str) -> tuple[str, str]:
    """The first of the funnel that is true, and why."""
    if leak:
        return "leaks", leak
    failed = [graded for graded in good if not graded.resolved]
    if failed:
        return "flaky" if len(failed) < len(good) else "reference fails", _failing(failed[0])
    if order:
        return "order", order
    if any(graded.resolved for graded in bad):
        return "nothing to do", "its tests pass without any change"
    return HOLDS, ""


def funnel(results: Sequence[Audited]) -> list[tuple[str, int]]:
    """How many tasks are left after each reason to fall out."""
    fallen = Counter(result.verdict for result in results)
    left, told = len(results), [("tasks", len(results))]
    for reason in FUNNEL:
        left -= fallen[reason]
        told.append((f"after {reason}", left))
    return told


def lines(results: Sequence[Audited]) -> list[str]:
    """For a person: those that do not hold, those whose tests reach out, the funnel."""
    told = [
        f"{result.task}: {result.verdict}: {result.why} (reference {result.reference}, base {result.base})"
        for result in results
        if result.verdict != HOLDS
    ]
    told += [f"{result.task}: {result.reaches}" for result in results if result.reaches]
    told += [f"{result.task}: only in their order: {result.order}" for result in results if result.order]
    rows: list[tuple[str, Any]] = [*funnel(results)]
    return [*told, *(f"{name:<24}{number:>6}" for name, number in rows)]
