"""What a person is told of one trial, and that nothing in it is obeyed by the terminal."""

import io
import json
from typing import Any

import numpy as np
import pytest
from record_pieces import a_task, a_trial

from engine.core.records import (
    Exchange,
    FileChange,
    Finding,
    Patch,
    Scored,
    Termination,
    TestResult,
    Trajectory,
    Verdict,
)
from engine.observe.progress import PlainProgress
from engine.observe.watch import Watch, call_lines, end_lines


def an_exchange(message: dict[str, Any] | None, **changes: Any) -> Exchange:
    none = np.zeros(0, np.int32)
    values: dict[str, Any] = {
        "id": "x0",
        "parent": None,
        "kind": "policy",
        "protocol": "openai_chat",
        "request": "{}",
        "response": json.dumps({"choices": [{"message": message}]}) if message else "",
        "prompt_ids": none,
        "prompt_length": 40,
        "sampled_ids": np.zeros(7, np.int32),
        "logprobs": np.zeros(7, np.float32),
        "policy_versions": none,
        "routed_experts": None,
        "routed_start": 0,
        "finish_reason": "stop",
        "error": "",
        "started_s": 0.0,
        "queued_s": 0.0,
        "generate_s": 1.25,
        "cached_tokens": 0,
    }
    return Exchange(**(values | changes))


CALL = {"id": "c", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
HEAD = "call x0: prompt 40, sampled 7 tokens in 1.2 s"


@pytest.mark.parametrize(
    ("exchange", "lines"),
    [
        (an_exchange({"content": "\n I look.\nMore."}), [f"{HEAD}, stop: I look."]),
        (
            an_exchange({"content": "", "tool_calls": [CALL, CALL]}),
            [f"{HEAD}, stop: (no text)", *['  bash {"command": "ls"}'] * 2],
        ),
        (an_exchange({"content": "\x1b[2Jgone\x07"}), [f"{HEAD}, stop: ·[2Jgone·"]),
        (an_exchange({"content": "x" * 500}), [f"{HEAD}, stop: {'x' * 160}…"]),
        (an_exchange(None, error="the engine\nfailed"), [f"{HEAD}; came to nothing: the engine"]),
        (an_exchange(None, response="<html>"), [f"{HEAD}: <html>"]),
    ],
)
def test_a_call(exchange: Exchange, lines: list[str]) -> None:
    assert call_lines(exchange) == lines


def scored(verdict: Verdict | None, termination: Termination = Termination.AGENT_COMPLETED) -> Scored:
    change = FileChange(path="a.py", before=b"", after=b"\x1b")
    trajectory = Trajectory(
        trial=a_trial(a_task()),
        exchanges=(),
        segments=(),
        termination=termination,
        reason="so it ended\nsays the harness",
        timings={"setup": 1.0, "agent": 2.5},
        patch=Patch(changes=(change,), diff="--- a/a.py\n+++ b/a.py\n+\x1b[2J\n") if verdict else None,
        findings=(Finding(stage="signs", phase="agent", detail="it looked", paths=("a", "b")),),
    )
    return Scored(trajectory=trajectory, verdict=verdict)


def test_what_a_kept_trial_came_to() -> None:
    tests = [TestResult(id=f"t{number}", kind="pass_to_pass", outcome="failed", ok=False) for number in range(9)]
    tests += [TestResult(id="good", kind="fail_to_pass", outcome="passed", ok=True)]
    verdict = Verdict(
        reward=0.0,
        resolved=False,
        tests=tuple(tests),
        evidence="why\nlast line",
        findings=(Finding(stage="canaries", phase="grade", detail="one turned"),),
        grade_s=1.0,
    )
    assert end_lines(scored(verdict)) == [
        "ended      agent_completed: so it ended",
        "calls      0, 0 tokens sampled",
        "stages     setup 1.0 s, agent 2.5 s",
        "finding    signs/agent: it looked (a, b)",
        "finding    canaries/grade: one turned",
        "patch      1 file:",
        "  --- a/a.py",
        "  +++ b/a.py",
        "  +·[2J",
        "verdict    not resolved, reward 0",
        "tests      1 of 10 as they must be",
        *(f"  failed pass_to_pass t{number}" for number in range(8)),
        "  and 1 more",
        "evidence",
        "  why",
        "  last line",
    ]


def test_what_an_excluded_trial_came_to() -> None:
    lines = end_lines(scored(None, Termination.HARNESS_FAILED))
    assert lines[0] == "ended      harness_failed (excluded: neither trained on nor counted): so it ended"
    assert not [line for line in lines if line.startswith(("patch", "verdict"))]


def test_nothing_is_printed_into_a_shell_and_nothing_is_lost() -> None:
    out, now = io.StringIO(), [0.0]
    watch = Watch(PlainProgress(out, 10.0, lambda: now[0]))
    watch.stage("agent")
    watch.heard(an_exchange({"content": "one"}))
    with watch.silent():
        before = out.getvalue()
        now[0] = 100.0
        watch.beat()
        watch.stage("grade")
        watch.heard(an_exchange({"content": "two"}))
        watch.say("three")
        assert out.getvalue() == before
    told = out.getvalue().removeprefix(before)
    assert [line.rpartition("] ")[2] for line in told.splitlines()] == [f"{HEAD}, stop: two", "three"]
    now[0] = 200.0
    watch.beat()
    assert out.getvalue().endswith("agent · 2 calls, 14 tokens sampled | 200 s\n")
