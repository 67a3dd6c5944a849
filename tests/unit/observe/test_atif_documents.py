"""What stands in an ATIF document: steps, results, verdict, and what cannot be told."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from atif_pieces import ABOUT, Told, check, check_tokens, inside, result, row, sampled_steps, says, system, user
from samples_cases import exchange, scored, silent

from engine.core.errors import AlignmentError, RunError
from engine.core.records import Exchange, Scored, Termination
from engine.observe.atif.document import documents


def one(document: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (only,) = document.values()
    return only


def test_messages_calls_and_results_are_steps() -> None:
    told = Told()
    start = told.call(
        None, [system("You mend."), user("Mend add.")], says("I look.", a={"command": "ls"}, b='{"command": "l')
    )
    told.call(start, [result("b", "no JSON"), result("a", "calc"), user("Go on."), result("z", "stray")], says("Done."))
    document = one(told.documents())
    assert [(step["step_id"], step["source"], step["message"]) for step in document["steps"]] == [
        (1, "system", "You mend."),
        (2, "user", "Mend add."),
        (3, "agent", "I look."),
        (4, "user", "Go on."),
        (5, "agent", "Done."),
    ]
    step = document["steps"][2]
    assert step["tool_calls"] == [
        {"tool_call_id": "a", "function_name": "run", "arguments": {"command": "ls"}},
        {
            "tool_call_id": "b",
            "function_name": "run",
            "arguments": {},
            "extra": {"malformed_arguments": '{"command": "l'},
        },
    ]
    assert step["observation"]["results"] == [
        {"content": "no JSON", "source_call_id": "b"},
        {"content": "calc", "source_call_id": "a"},
        {"content": "stray", "extra": {"tool_call_id": "z"}},
    ]
    assert step["timestamp"] == "2001-09-09T01:46:40+00:00"
    assert (step["llm_call_count"], step["extra"]) == (1, {"exchange": "x0"})
    assert document["final_metrics"] == {
        "total_prompt_tokens": 2 + 7,
        "total_completion_tokens": 6,
        "total_cached_tokens": 0,
        "total_steps": 5,
    }


def test_an_answer_that_the_harness_made_up_is_context() -> None:
    told = Told()
    told.call(None, [user("Setting."), says("Got it."), user("Mend add.")], says("Done."))
    steps = one(told.documents())["steps"]
    assert [(step["source"], step.get("is_copied_context"), "metrics" in step) for step in steps] == [
        ("user", None, False),
        ("agent", True, False),
        ("user", None, False),
        ("agent", None, True),
    ]


TOOL = {"name": "run", "description": "Run.", "parameters": {"type": "object", "properties": {}}}
BODIES: dict[str, tuple[Any, Any, Any]] = {
    "openai_chat": (
        {"model": "m", "tools": [{"type": "function", "function": TOOL}], "messages": [user("Mend.")]},
        {"choices": [{"message": says("", a={"n": 1}) | {"reasoning_content": "Hm."}}]},
        {"model": "m", "messages": [user("Mend."), says("", a={"n": 1}), result("a", "no")]},
    ),
    "openai_responses": (
        {"model": "m", "tools": [{"type": "function", **TOOL}], "input": [{"role": "user", "content": "Mend."}]},
        {
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "summary": []},
                {"type": "function_call", "call_id": "a", "name": "run", "arguments": '{"n": 1}'},
            ]
        },
        {
            "model": "m",
            "input": [
                {"role": "user", "content": "Mend."},
                {"type": "function_call", "call_id": "a", "name": "run", "arguments": '{"n": 1}'},
                {"type": "function_call_output", "call_id": "a", "output": "no"},
            ],
        },
    ),
    "anthropic": (
        {
            "model": "m",
            "max_tokens": 9,
            "tools": [{"name": "run", "description": "Run.", "input_schema": TOOL["parameters"]}],
            "messages": [user("Mend.")],
        },
        {
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "run", "input": {"n": 1}},
            ]
        },
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [
                user("Mend."),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "run", "input": {"n": 1}}]},
                user([{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}]),  # type: ignore[arg-type]
            ],
        },
    ),
}


@pytest.mark.parametrize("protocol", BODIES)
def test_all_three_protocols_say_the_same(protocol: str) -> None:
    first_request, first_response, second_request = BODIES[protocol]

    def made(name: str, parent: Exchange | None, request: Any, response: Any) -> Exchange:
        plain = exchange(name, parent, [1, 2], [3])
        bodies = {"request": json.dumps(request), "response": json.dumps(response)}
        return dataclasses.replace(plain, protocol=protocol, **bodies)

    first = made("x0", None, first_request, first_response)
    second = made("x1", first, second_request, BODIES["openai_chat"][1] if protocol == "openai_chat" else {})
    document = one(documents(row(_of(first, second)), ABOUT))
    check(document)
    assert document["agent"]["tool_definitions"] == [{"type": "function", "function": TOOL}]
    asked, acted, *_ = document["steps"]
    assert (asked["source"], asked["message"]) == ("user", "Mend.")
    assert (acted["message"], acted["reasoning_content"]) == ("", "Hm.")
    assert acted["tool_calls"] == [{"tool_call_id": "a", "function_name": "run", "arguments": {"n": 1}}]
    (back,) = acted["observation"]["results"]
    assert (back["source_call_id"], back["content"]) == ("a", "Error: no" if protocol == "anthropic" else "no")
    assert back.get("extra") == ({"is_error": True} if protocol == "anthropic" else None)


def _of(*exchanges: Exchange) -> Scored:
    base = scored(1.0)
    return dataclasses.replace(base, trajectory=dataclasses.replace(base.trajectory, exchanges=exchanges, segments=()))


def test_token_ids_and_log_probabilities_are_the_stored_ones() -> None:
    """Of the tree of all kinds: a lost turn, a side call, a second branch, a fresh root. Bodies are no requests."""
    item = scored(0.25)
    exchanges = list(item.trajectory.exchanges)
    rng = np.random.default_rng(0)
    exchanges = [
        dataclasses.replace(x, logprobs=-rng.exponential(size=len(x.sampled_ids)).astype(np.float32)) for x in exchanges
    ]
    item = dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, exchanges=tuple(exchanges)))
    files = documents(row(item), ABOUT)
    for document in files.values():
        check(document)
    read = json.loads(json.dumps(files))
    check_tokens(exchanges, read)
    for x in exchanges:
        if x.kind == "policy":
            again = np.array(sampled_steps(read)[x.id]["logprobs"], np.float32)
            assert again.tobytes() == x.logprobs.tobytes()
    unread = [step["extra"] for file in files.values() for inner in inside(file) for step in inner["steps"]]
    assert all(extra["unreadable"] == ["request"] for extra in unread)
    root = files["e0-t-s0-a0.json"]["extra"]
    assert [(call["id"], call["kind"]) for call in root["calls_not_trained"]] == [("x1", "side"), ("x2", "discarded")]
    assert [call["completion_tokens"] for call in root["calls_not_trained"]] == [2, 2]


def test_prompts_can_be_left_out() -> None:
    told = Told()
    told.call(None, [user("Mend.")], says("Done."))
    (metrics,) = sampled_steps(told.documents(dataclasses.replace(ABOUT, prompt_ids=False))).values()
    assert "prompt_token_ids" not in metrics
    assert (metrics["prompt_tokens"], len(metrics["completion_token_ids"])) == (2, 3)


def test_the_verdict_stands_in_every_file() -> None:
    told = Told()
    told.call(None, [user("Mend.")], says("", a={"command": "ls"}))
    told.call(None, [user("Sum up.")], says("Notes."))
    told.call(None, [user("Before: Notes.")], says("Done."))
    files = told.documents()
    assert [file["extra"]["part"] for file in files.values()] == [0, 1]
    for file in files.values():
        extra = file["extra"]
        assert (extra["reward"], extra["resolved"], extra["excluded"]) == (1.0, True, False)
        assert (extra["termination"], extra["step"]) == ("agent_completed", 3)
        assert file["session_id"] == "r/e0-t-s0-a0"
        assert (file["agent"]["name"], file["agent"]["version"]) == ("openhands", "1.2")
    facts = files["e0-t-s0-a0.json"]["extra"]
    assert (facts["run"], facts["task"], facts["advantage"], facts["policy_version"]) == ("r", "t", 0.5, 3)


def test_a_trial_of_which_nothing_is_trained_says_why() -> None:
    broken = silent(scored(None, termination=Termination.SETUP_FAILED))
    side = _of(exchange("x0", None, [1], [2], kind="side"))
    for item in (broken, side):
        document = one(documents(row(item), ABOUT))
        check(document)
        (step,) = document["steps"]
        assert (step["source"], step["message"].split(":")[0]) == (
            "system",
            "No answer of the model belongs to this trial",
        )
    assert one(documents(row(broken), ABOUT))["extra"]["reward"] is None
    assert one(documents(row(broken), ABOUT))["extra"]["excluded"] is True


def test_what_cannot_be_told_is_refused() -> None:
    good = exchange("x0", None, [1], [2])
    for wrong in (np.nan, -np.inf):
        bad = dataclasses.replace(good, logprobs=np.array([wrong], np.float32))
        with pytest.raises(RunError, match="x0 has a log-probability that is no finite number"):
            documents(row(_of(bad)), ABOUT)
    short = dataclasses.replace(good, prompt_length=5)
    with pytest.raises(AlignmentError, match="stored in pieces of 1 tokens, and has 5"):
        documents(row(_of(short)), ABOUT)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parent": "nobody"}, "x1: it goes on from nobody, which is no call before it"),
        ({"parent": "x1"}, "x1: it goes on from x1, which is no call before it"),
        ({"id": "x0", "parent": None}, "x0: there are two"),
    ],
)
def test_calls_that_are_no_tree_are_refused(changes: dict[str, Any], told: str) -> None:
    """A damaged file; a call that goes on from itself was followed for ever."""
    first = exchange("x0", None, [1], [2])
    second = dataclasses.replace(exchange("x1", first, [3], [4]), **changes)
    with pytest.raises(AlignmentError, match=f"exchange {told}; the trial's file is damaged"):
        documents(row(_of(first, second)), ABOUT)
