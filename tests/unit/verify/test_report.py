"""A report is believed as a whole or not at all."""

import json

import pytest

from engine.verify.report import Report, read_report

MARK = "m" * 32
Phase = tuple[str, str, str, bool]


def ran(test: str, *, setup: str = "passed", call: str = "passed", teardown: str = "passed", xfail: bool = False):
    """The phase records of one test."""
    phases = [("setup", setup, xfail and setup == "skipped")]
    if setup == "passed":
        phases.append(("call", call, xfail))
    phases.append(("teardown", teardown, False))
    return [{"kind": "phase", "id": test, "when": when, "outcome": out, "xfail": xf} for when, out, xf in phases]


def whole(*tests: list[dict], failed: int, collected: list[str] | None = None, status: int | None = None) -> list[dict]:
    records = [record for test in tests for record in test]
    ids = collected if collected is not None else list(dict.fromkeys(record["id"] for record in records))
    end = {"kind": "end", "status": (1 if failed else 0) if status is None else status, "failed": failed}
    return [{"kind": "collected", "ids": ids}, *records, end]


def text(records: list[dict], mark: str = MARK) -> str:
    return "".join(f"{mark} {json.dumps({'n': number, **record})}\n" for number, record in enumerate(records))


def read(records: list[dict], exit_code: int) -> Report:
    return read_report(text(records), MARK, exit_code)


@pytest.mark.parametrize(
    ("phases", "failed", "outcome"),
    [
        (ran("t"), 0, "passed"),
        (ran("t", call="failed"), 1, "failed"),
        (ran("t", setup="failed"), 1, "error"),
        (ran("t", teardown="failed"), 1, "error"),
        (ran("t", call="failed", teardown="failed"), 2, "error"),
        (ran("t", setup="skipped"), 0, "skipped"),
        (ran("t", call="skipped"), 0, "skipped"),
        (ran("t", call="skipped", xfail=True), 0, "xfailed"),
        (ran("t", setup="skipped", xfail=True), 0, "xfailed"),
        (ran("t", call="passed", xfail=True), 0, "xpassed"),
        (ran("t", call="invented"), 0, "error"),
    ],
)
def test_the_outcome_of_one_test(phases: list[dict], failed: int, outcome: str) -> None:
    report = read(whole(phases, failed=failed), failed)
    assert report.fault == ""
    assert dict(report.outcomes) == {"t": outcome}


def test_ids_may_hold_anything() -> None:
    names = ["t.py::a b", "t.py::é\n[x]", "t.py::\u2028", "t.py::PASSED t.py::b"]
    report = read(whole(*(ran(name) for name in names), failed=0), 0)
    assert report.fault == ""
    assert list(report.outcomes) == names


def test_files_that_cannot_be_collected_count_as_failures() -> None:
    records = whole(ran("t"), failed=1)
    records.insert(1, {"kind": "collect_error", "id": "tests/test_x.py"})
    report = read(records, 1)
    assert (report.fault, report.broken_files) == ("", ("tests/test_x.py",))


FORGERIES = {
    "a foreign mark": (text(whole(ran("t"), failed=0), "f" * 32), 0),
    "no mark": ('{"n": 0, "kind": "ready"}\n', 0),
    "a line put in": (text(whole(ran("t"), failed=0)) + f"{MARK} {json.dumps({'n': 0, 'kind': 'ready'})}\n", 0),
    "a line after the end": (text([*whole(ran("t"), failed=0), {"kind": "ready"}]), 0),
    "cut off": (text(whole(ran("t"), failed=0)[:-1]), 0),
    "empty": ("", 0),
    "reported twice": (text(whole(ran("t", call="failed"), ran("t"), failed=1)), 1),
    "call without setup": (text(whole(ran("t")[1:], failed=0)), 0),
    "collected and never reported": (text(whole(ran("t"), failed=0, collected=["t", "u"])), 0),
    "exit code 0 over failures": (text(whole(ran("t", call="failed"), failed=1)), 0),
    "pytest counted other failures": (text(whole(ran("t", call="failed"), failed=0)), 0),
    "failures made to pass": (text(whole(ran("t"), failed=1)), 1),
    "killed": (text(whole(ran("t"), failed=0)), -9),
    "usage error": (text(whole(failed=0, status=4)), 214),
    "no fields": (f"{MARK} {json.dumps({'n': 0, 'kind': 'phase'})}\n", 0),
    "not JSON": (f"{MARK} nonsense\n", 0),
    "a number that is none": (f'{MARK} {{"n": 0, "kind": "end", "status": Infinity, "failed": 0}}\n', 0),
    "too deep to be read": (f"{MARK} {'[' * 100_000}\n", 0),
    "wrong types": (f"{MARK} {json.dumps({'n': 0, 'kind': 'collected', 'ids': 3})}\n", 0),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_report_that_does_not_hold_together_is_not_believed(name: str) -> None:
    forged, exit_code = FORGERIES[name]
    assert read_report(forged, MARK, exit_code).fault


def test_whatever_names_a_report_makes_up_can_be_stored() -> None:
    twice = ran("\ud800", call="failed")
    report = read([*whole(twice, twice, failed=2), {"kind": "ready"}], 1)
    report.fault.encode()
    assert all(test.encode() for test in report.outcomes)


def test_a_test_that_stopped_half_way_is_missing() -> None:
    report = read([{"kind": "ready"}, *ran("t")[:2]], -9)
    assert dict(report.outcomes) == {"t": "missing"}
    report = read(ran("t", call="failed")[:2], -9)
    assert dict(report.outcomes) == {"t": "failed"}


def test_many_failures_fit_into_an_exit_code() -> None:
    tests = [ran(f"t{index}", call="failed") for index in range(300)]
    assert read(whole(*tests, failed=300), 200).fault == ""
    assert read(whole(*tests, failed=300), 44).fault
