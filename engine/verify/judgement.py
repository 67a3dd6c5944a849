"""From a report to a verdict's tests.

FAIL_TO_PASS is satisfied by passed, xfailed and xpassed; PASS_TO_PASS by skipped too. A missing test fails. The reward
is 1 when all are satisfied, else 0: there is nothing between.
"""

from collections.abc import Mapping
from typing import Literal

from engine.core.records import Outcome, Task, TestResult

_SATISFIES: dict[str, frozenset[Outcome]] = {
    "fail_to_pass": frozenset({"passed", "xfailed", "xpassed"}),
    "pass_to_pass": frozenset({"passed", "xfailed", "xpassed", "skipped"}),
}


def judge(task: Task, outcomes: Mapping[str, Outcome]) -> tuple[TestResult, ...]:
    """One result for each test id of the task, in the task's order."""
    return tuple(
        _result(test, kind, outcomes.get(test, "missing"))
        for kind, tests in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass))
        for test in tests
    )


def _result(test: str, kind: str, outcome: Outcome) -> TestResult:
    named: Literal["fail_to_pass", "pass_to_pass"] = "fail_to_pass" if kind == "fail_to_pass" else "pass_to_pass"
    return TestResult(id=test, kind=named, outcome=outcome, ok=outcome in _SATISFIES[kind])


def summary(results: tuple[TestResult, ...]) -> str:
    """One line for a person: how many of each kind hold, and the first that does not."""
    parts = []
    for kind in ("fail_to_pass", "pass_to_pass"):
        chosen = [result for result in results if result.kind == kind]
        parts.append(f"{kind} {sum(result.ok for result in chosen)}/{len(chosen)}")
    wrong = next((result for result in results if not result.ok), None)
    if wrong is not None:
        parts.append(f"first: {wrong.id} {wrong.outcome}")
    return ", ".join(parts)
