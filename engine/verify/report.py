"""The report of a grading run: sealed lines in, one outcome for each test id out.

Invariant: a report is believed only as a whole. Every line carries the run's mark and the next number, every test is
reported in setup, call and teardown, once each and in that order, and the exit code counts exactly the failures that
the lines report. Anything else makes it a report that was tampered with or cut off, with the reason in words.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.core.records import Outcome
from engine.verify.driver import CODE_LIMIT

_CALLED: dict[tuple[str, bool], Outcome] = {
    ("passed", False): "passed",
    ("passed", True): "xpassed",
    ("failed", False): "failed",
    ("failed", True): "failed",
    ("skipped", False): "skipped",
    ("skipped", True): "xfailed",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the runner reported, checked."""

    outcomes: Mapping[str, Outcome]
    """Node id → outcome of every test that ran."""
    broken_files: tuple[str, ...]
    """Files that could not be collected."""
    fault: str
    """Why the report is not to be believed; empty when it is whole."""


@dataclass(kw_only=True)
class _Reading:
    phases: dict[str, list[tuple[str, str, bool]]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    collected: list[str] | None = None
    end: tuple[int, int] | None = None
    """pytest's status and its own count of failures."""
    failures: int = 0


def read_report(text: str, mark: str, exit_code: int) -> Report:
    """Read the lines of one run. `exit_code` is the runner's, negative for a signal."""
    reading = _Reading()
    fault = ""
    for number, line in enumerate(text.splitlines()):
        fault = fault or _take(reading, line, mark, number)
    outcomes = {test: _outcome(phases) for test, phases in reading.phases.items()}
    return Report(
        outcomes=outcomes, broken_files=tuple(reading.broken), fault=fault or _disagreement(reading, exit_code)
    )


def _take(reading: _Reading, line: str, mark: str, number: int) -> str:
    """Take one line; returns what is wrong with it."""
    head, _, body = line.partition(" ")
    try:
        record = json.loads(body) if head == mark else None
        if not isinstance(record, dict) or record["n"] != number or reading.end is not None:
            return f"line {number} was not written by the runner"
        return _record(reading, record)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return f"line {number} is not a record of the runner"


def _record(reading: _Reading, record: Mapping[str, Any]) -> str:
    kind = record["kind"]
    if kind == "phase":
        test, when, outcome = _text(record["id"]), str(record["when"]), str(record["outcome"])
        phases = reading.phases.setdefault(test, [])
        expected = ("setup", "call", "teardown") if not phases or phases[0][1] == "passed" else ("setup", "teardown")
        if len(phases) >= len(expected) or when != expected[len(phases)]:
            return f"{test} was reported twice or out of order"
        phases.append((when, outcome, bool(record["xfail"])))
        reading.failures += outcome == "failed"
    elif kind == "collect_error":
        reading.broken.append(_text(record["id"]))
        reading.failures += 1
    elif kind == "collected":
        reading.collected = [_text(test) for test in record["ids"]]
    elif kind == "end":
        reading.end = int(record["status"]), int(record["failed"])
    return ""


def _text(told: object) -> str:
    """As it can be stored: a name that the tested code made up need not be Unicode."""
    return str(told).encode("utf-8", "backslashreplace").decode()


def _outcome(phases: list[tuple[str, str, bool]]) -> Outcome:
    """One outcome from the phases of one test; a test that stopped half-way, before it failed, is missing."""
    if not phases or phases[-1][0] != "teardown":
        return "failed" if any(outcome == "failed" for _, outcome, _ in phases) else "missing"
    if any(outcome == "failed" for when, outcome, _ in phases if when != "call"):
        return "error"
    _, outcome, xfail = phases[1] if len(phases) == 3 else phases[0]
    return _CALLED.get((outcome, xfail), "error")


def _disagreement(reading: _Reading, exit_code: int) -> str:
    """Why report and exit code do not tell the same story; empty when they do."""
    if reading.end is None:
        return f"the report stops before its end (exit code {exit_code})"
    status, failed = reading.end
    if status not in (0, 1):
        return f"pytest ended with status {status}"
    if failed != reading.failures or exit_code != min(failed, CODE_LIMIT):
        return f"{reading.failures} failures reported, {failed} counted by pytest, exit code {exit_code}"
    unreported = [test for test in reading.collected or () if test not in reading.phases]
    if unreported:
        return f"{unreported[0]} was collected and never reported"
    return ""
