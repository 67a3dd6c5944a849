"""From a report to a verdict's tests.

FAIL_TO_PASS is satisfied by passed, xfailed and xpassed; PASS_TO_PASS by skipped too; skipping and expected failure
count only where the test's own source provides for them (`engine.verify.excuses`). A missing test fails. The reward is
1 when all are satisfied, else 0: there is nothing between.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from engine.core.records import Outcome, Task, TestResult
from engine.verify.excuses import Excuses

Kind = Literal["fail_to_pass", "pass_to_pass"]
_SATISFIES: dict[Kind, frozenset[Outcome]] = {
    "fail_to_pass": frozenset({"passed", "xfailed", "xpassed"}),
    "pass_to_pass": frozenset({"passed", "xfailed", "xpassed", "skipped"}),
}


def judge(task: Task, outcomes: Mapping[str, Outcome]) -> tuple[TestResult, ...]:
    """One result for each test id of the task, in the task's order."""
    excuses = Excuses(task.tests)
    named: tuple[tuple[Kind, Sequence[str]], ...] = (
        ("fail_to_pass", task.fail_to_pass),
        ("pass_to_pass", task.pass_to_pass),
    )
    results = []
    for kind, tests in named:
        for test in tests:
            outcome = outcomes.get(test, "missing")
            ok = outcome in _SATISFIES[kind] and excuses.grants(test, outcome)
            results.append(TestResult(id=test, kind=kind, outcome=outcome, ok=ok))
    return tuple(results)


def summary(results: Sequence[TestResult]) -> str:
    """One line for a person: how many of each kind hold, and the first that does not."""
    parts = []
    for kind in _SATISFIES:
        chosen = [result for result in results if result.kind == kind]
        parts.append(f"{kind} {sum(result.ok for result in chosen)}/{len(chosen)}")
    wrong = next((result for result in results if not result.ok), None)
    if wrong is not None:
        parts.append(f"first: {wrong.id} {wrong.outcome}")
    return ", ".join(parts)
