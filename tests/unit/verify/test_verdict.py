"""From outcomes to a reward: all or nothing, and never by what disturbs the tests."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from calc_task import FAIL_TO_PASS, PASS_TO_PASS, write_calc

from engine.core.records import Outcome, Task
from engine.verify.canaries import CanaryFile, make_canaries, without_canaries
from engine.verify.judgement import judge
from engine.verify.pytest_verifier import decide
from engine.verify.report import Report

GOOD: dict[str, Outcome] = dict.fromkeys((*FAIL_TO_PASS, *PASS_TO_PASS), "passed")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_calc(tmp_path)


@pytest.fixture
def canaries() -> tuple[CanaryFile, ...]:
    return make_canaries("tests", 2, random.Random(0))


def report(outcomes: dict[str, Outcome], canaries: tuple[CanaryFile, ...] = (), fault: str = "") -> Report:
    known = {test: outcome for canary in canaries for test, outcome in canary.expected.items()}
    return Report(outcomes={**known, **outcomes}, broken_files=(), fault=fault)


@pytest.mark.parametrize(
    ("kind", "outcome", "ok"),
    [
        (kind, outcome, ok)
        for kind in (FAIL_TO_PASS[0], PASS_TO_PASS[0])
        for outcome, ok in {
            "passed": True,
            "failed": False,
            "error": False,
            "missing": False,
        }.items()
    ],
)
def test_what_satisfies_a_test_id(task: Task, kind: str, outcome: Outcome, ok: bool) -> None:
    results = judge(task, {**GOOD, kind: outcome})
    assert next(result for result in results if result.id == kind).ok is ok
    assert decide(task, (), report({**GOOD, kind: outcome}), "exited", "", enforce=True).reward == float(ok)


@pytest.mark.parametrize(("outcome", "ok"), [("xfailed", True), ("xpassed", True), ("skipped", False)])
def test_expected_failures_count_as_passed_and_skips_for_pass_to_pass_alone(
    task: Task, outcome: Outcome, ok: bool
) -> None:
    known, skipped = "tests/test_calc.py::test_known", "tests/test_calc.py::test_skipped"
    turned = replace(task, fail_to_pass=(known, skipped), pass_to_pass=())
    test = skipped if outcome == "skipped" else known
    assert next(result for result in judge(turned, {test: outcome}) if result.id == test).ok is ok
    assert next(result for result in judge(task, {test: outcome}) if result.id == test).ok


def test_a_test_that_did_not_run_is_missing(task: Task) -> None:
    outcomes = {test: outcome for test, outcome in GOOD.items() if test != PASS_TO_PASS[1]}
    verdict = decide(task, (), report(outcomes), "exited", "", enforce=True)
    assert (verdict.reward, verdict.resolved) == (0.0, False)
    assert f"first: {PASS_TO_PASS[1]} missing" in verdict.evidence


def test_a_whole_run_with_its_canaries_is_rewarded(task: Task, canaries: tuple[CanaryFile, ...]) -> None:
    verdict = decide(task, canaries, report(GOOD, canaries), "exited", "output", enforce=True)
    assert (verdict.reward, verdict.resolved, verdict.findings) == (1.0, True, ())
    assert verdict.evidence == "fail_to_pass 1/1, pass_to_pass 5/5\noutput"


@pytest.mark.parametrize("wrong", ["flipped", "missing"])
def test_a_canary_that_turned_takes_the_reward(task: Task, canaries: tuple[CanaryFile, ...], wrong: str) -> None:
    victim = next(test for test, expected in canaries[1].expected.items() if expected == "failed")
    read = report({**GOOD, victim: "passed" if wrong == "flipped" else "missing"}, canaries)
    verdict = decide(task, canaries, read, "exited", "", enforce=True)
    assert verdict.reward == 0.0
    assert [(finding.stage, finding.paths) for finding in verdict.findings] == [("canaries", (victim,))]


def test_a_canary_that_turned_is_only_noted_where_canaries_observe(
    task: Task, canaries: tuple[CanaryFile, ...]
) -> None:
    victim = next(test for test, expected in canaries[1].expected.items() if expected == "failed")
    read = report({**GOOD, victim: "passed"}, canaries)
    taken = decide(task, canaries, read, "exited", "", enforce=True)
    noted = decide(task, canaries, read, "exited", "", enforce=False)
    assert (taken.reward, noted.reward, noted.resolved) == (0.0, 1.0, True)
    assert [replace(finding, acted=True) for finding in noted.findings] == list(taken.findings)
    assert [finding.acted for finding in noted.findings] == [False]


def test_a_canary_that_was_never_reported_takes_the_reward(task: Task, canaries: tuple[CanaryFile, ...]) -> None:
    verdict = decide(task, canaries, report(GOOD), "exited", "", enforce=True)
    assert (verdict.reward, verdict.findings[0].stage) == (0.0, "canaries")


def test_a_report_that_is_not_believed_takes_the_reward(task: Task) -> None:
    verdict = decide(task, (), report(GOOD, fault="line 3 was not written by the runner"), "exited", "", enforce=True)
    assert verdict.reward == 0.0
    assert "line 3" in verdict.findings[0].detail


@pytest.mark.parametrize("ended", ["timeout", "flooded", "lost"])
def test_a_run_that_did_not_end_by_itself_is_reward_0(task: Task, ended: str) -> None:
    assert decide(task, (), report(GOOD), ended, "", enforce=True).reward == 0.0


def test_canaries_are_real_tests_with_unpredictable_names(canaries: tuple[CanaryFile, ...]) -> None:
    first, second = canaries
    assert not set(first.expected) & set(second.expected)
    for canary in canaries:
        assert sorted(canary.expected.values()) == ["failed"] * 4 + ["passed"]
        assert canary.path.startswith("tests/test_")
        compile(canary.source, canary.path, "exec")
        assert not any(word in canary.source for word in ("canary", "lego"))


def test_an_excuse_that_the_test_does_not_give_is_not_taken(task: Task) -> None:
    """`pytest.xfail()` and `pytest.skip()` can come from the code under test."""
    for outcome in ("xfailed", "skipped"):
        verdict = decide(task, (), report({**GOOD, FAIL_TO_PASS[0]: outcome}), "exited", "", enforce=True)
        assert (verdict.reward, verdict.tests[0].ok) == (0.0, False)


def test_evidence_does_not_show_failures_that_were_meant(canaries: tuple[CanaryFile, ...]) -> None:
    failed = next(test for test, outcome in canaries[0].expected.items() if outcome == "failed")
    name = failed.rsplit("::", 1)[1]
    output = (
        f"...F\n=== FAILURES ===\n____ {name} ____\ncanary body\n____ test_add ____\nassert -1 == 5\n"
        f"=== short test summary info ===\nFAILED {failed} - x\nFAILED tests/test_calc.py::test_add\n"
    )
    assert without_canaries(output, canaries) == (
        "...F\n=== FAILURES ===\n____ test_add ____\nassert -1 == 5\n"
        "=== short test summary info ===\nFAILED tests/test_calc.py::test_add\n"
    )
