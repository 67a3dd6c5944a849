"""Whether the policy's answers can be run, and what a trial costs, from hand-made trials."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import pytest
from atif_pieces import with_all_parts, worded
from samples_cases import branching, exchange, scored, trial

from engine.core.records import Exchange, FileChange, Patch, Scored, Termination, Verdict
from engine.observe.trials import trial_metrics

TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {}}}]
OK = ("edit", '{"path": "a.py"}')
UNKNOWN = ("erase", "{}")
CUT = ("edit", '{"path": "a.p')
LIST = ("edit", "[1]")


def answer(number: int, *calls: tuple[str, str], tools: object = TOOLS, kind: str = "policy") -> Exchange:
    body = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "text", **({"tool_calls": body} if body else {})}
    return dataclasses.replace(
        exchange(f"x{number}", None, [1], [2], kind=kind),
        request=json.dumps({"messages": [], "tools": tools} if tools else {"messages": []}),
        response=json.dumps({"choices": [{"message": message}]}),
    )


def ended(
    answers: Sequence[Exchange], *, changes: int = 1, kept: bool = True, timings: Mapping[str, float] | None = None
) -> Scored:
    change = FileChange(path="a.py", before=b"1", after=b"2")
    base = branching(trial(), Termination.AGENT_COMPLETED if kept else Termination.SANDBOX_LOST)
    trajectory = dataclasses.replace(
        base, exchanges=tuple(answers), patch=Patch(changes=(change,) * changes, diff=""), timings=timings or {}
    )
    verdict = Verdict(reward=0.0, resolved=False, tests=(), evidence="", findings=(), grade_s=0.0)
    return Scored(trajectory=trajectory, verdict=verdict if kept else None)


def test_answers_are_valid_malformed_or_without_a_call() -> None:
    first = ended([answer(0, OK), answer(1, OK, OK), answer(2, OK, CUT), answer(3)])
    second = ended([answer(0, UNKNOWN), answer(1, LIST), answer(2), answer(3, OK)], changes=0)
    metrics = trial_metrics([first, second])
    assert metrics["calls/valid"] == 3 / 8
    assert metrics["calls/malformed"] == 3 / 8
    assert metrics["calls/absent"] == 2 / 8
    assert metrics["trials/turns"] == 4
    assert metrics["trials/empty_patch"] == 0.5


def test_only_answers_of_the_policy_in_kept_trials_count() -> None:
    failed = dataclasses.replace(answer(3), response="")
    kept = ended([answer(0, OK), answer(1, kind="side"), answer(2, kind="discarded"), failed])
    metrics = trial_metrics([kept, ended([answer(0, CUT)] * 5, changes=0, kept=False)])
    assert (metrics["calls/valid"], metrics["trials/turns"], metrics["trials/empty_patch"]) == (1, 1, 0)


@pytest.mark.parametrize("tools", [None, []])
def test_a_harness_of_plain_text_has_no_validity(tools: object) -> None:
    metrics = trial_metrics([ended([answer(0, tools=tools)])])
    assert not any(name.startswith("calls/") for name in metrics)
    assert metrics["trials/turns"] == 1


def test_forbidden_calls_are_no_failure_to_call() -> None:
    one = answer(0)
    forbidden = dataclasses.replace(one, request=json.dumps({**json.loads(one.request), "tool_choice": "none"}))
    assert "calls/absent" not in trial_metrics([ended([forbidden])])


def test_stage_times_count_excluded_trials_too() -> None:
    timings = [{"setup": float(value)} for value in range(1, 11)]
    timings[0]["agent"] = 7.0
    metrics = trial_metrics([ended([], timings=timing, kept=index > 4) for index, timing in enumerate(timings)])
    assert metrics["stages/setup_p50_s"] == pytest.approx(5.5)
    assert metrics["stages/setup_p90_s"] == pytest.approx(9.1)
    assert (metrics["stages/agent_p50_s"], metrics["stages/agent_p90_s"]) == (7, 7)


def test_without_a_kept_trial_nothing_is_said_of_the_policy() -> None:
    assert trial_metrics([scored(None, termination=Termination.SANDBOX_LOST)]) == {}


@pytest.mark.parametrize("protocol", ["openai_chat", "openai_responses", "anthropic"])
def test_compactions_and_sub_agents_are_counted_in_the_conversation_itself(protocol: str) -> None:
    """pier PR#12: looked for at another level than where it is told, the count was always 0."""
    base, plain = with_all_parts().scored(), ended([answer(0, OK)])
    exchanges = tuple(worded(one, protocol) for one in base.trajectory.exchanges)
    several = branching(trial()).segments
    one = dataclasses.replace(
        base, trajectory=dataclasses.replace(base.trajectory, exchanges=exchanges, segments=several)
    )
    metrics = trial_metrics([one, one, plain, plain])
    assert (metrics["trials/compactions"], metrics["trials/sub_agents"]) == (0.5, 0.5)
    metrics = trial_metrics([plain])
    assert (metrics["trials/compactions"], metrics["trials/sub_agents"]) == (0, 0)
