"""How an ending is judged, whichever harness ended."""

import json

import pytest

from engine.core.errors import HarnessError
from engine.core.records import Termination
from engine.core.specs import ExecResult
from engine.harness.endings import judge
from engine.harness.launchers import process

STARTED = process.STARTED.encode() + b"\n"


def result(
    code: int, *, stdout: bytes = b"", stderr: bytes = b"", timed_out: bool = False, oom: bool = False
) -> ExecResult:
    return ExecResult(
        exit_code=code, stdout=stdout, stderr=stderr, timed_out=timed_out, oom_killed=oom, duration_s=12.0
    )


def report(error: str) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("ended", "words", "termination"),
    [
        (result(process.EXIT_FINISHED), b"{}", Termination.AGENT_COMPLETED),
        (result(process.EXIT_FINISHED), None, Termination.AGENT_COMPLETED),
        (result(process.EXIT_MAX_TURNS), report("limit"), Termination.MAX_TURNS),
        (result(process.EXIT_NO_PROGRESS), b"{}", Termination.NO_PROGRESS),
        (result(process.EXIT_CONTEXT_OVERFLOW), report("too long"), Termination.CONTEXT_OVERFLOW),
        (result(process.EXIT_OUT_OF_RESOURCES), None, Termination.AGENT_OOM),
        (result(-1, timed_out=True), None, Termination.AGENT_TIMEOUT),
        (result(137, timed_out=True, oom=True), None, Termination.AGENT_TIMEOUT),
        (result(137, oom=True), None, Termination.AGENT_OOM),
        (result(-9, stdout=STARTED), None, Termination.AGENT_COMPLETED),
        (result(143, stdout=STARTED), None, Termination.AGENT_COMPLETED),
        # A child that ran out of memory while the harness went on is the agent's own affair.
        (result(process.EXIT_FINISHED, oom=True), None, Termination.AGENT_COMPLETED),
    ],
)
def test_judged_as(ended: ExecResult, words: bytes | None, termination: Termination) -> None:
    judged, reason = judge("Agent", ended, words)
    assert judged is termination
    assert reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (result(process.EXIT_CRASHED, stderr=b"Traceback\nImportError: no\n"), "ImportError: no"),
        (result(process.EXIT_UNSERVED, stdout=STARTED), "no answer"),
        (result(process.EXIT_REFUSED, stdout=STARTED), "refused"),
        (result(127, stderr=b"bwrap: execvp: No such file or directory"), "No such file"),
        (result(1), "exited with 1"),
        (result(-9), "SIGKILL"),
        (result(139), "SIGSEGV"),
    ],
)
def test_failures_of_the_harness(ended: ExecResult, expected: str) -> None:
    with pytest.raises(HarnessError, match=expected) as raised:
        judge("Agent", ended, None)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "forged",
    [
        b'{"error": "HarnessError", "exit_code": 70}',
        b'{"status": "crashed", "exit_code": 75, "error": ["x"]}',
        b"[1, 2",
        b"\xff\xfe",
        b"[]",
        b'{"error": {"a": 1}}',
        b"[" * 100_000,
        b'{"error": "\\ud800"}',
    ],
)
def test_a_forged_report_cannot_buy_an_exclusion(forged: bytes) -> None:
    judged, _ = judge("Agent", result(process.EXIT_FINISHED), forged)
    assert judged is Termination.AGENT_COMPLETED
    _, reason = judge("Agent", result(process.EXIT_MAX_TURNS), forged)
    reason.encode()  # as it is stored
    with pytest.raises(HarnessError):
        judge("Agent", result(process.EXIT_CRASHED), b'{"status": "finished", "error": ""}')


def test_words_of_a_report_are_one_bounded_line() -> None:
    _, reason = judge("Agent", result(process.EXIT_NO_PROGRESS), report("a\nb " + "c" * 5000))
    assert "a b" in reason
    assert len(reason) < 700
