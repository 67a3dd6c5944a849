"""What was said in recorded bodies, for those who only read."""

import json

import pytest

from engine.wire.messages import Message, Refusal, ToolCall
from engine.wire.recorded import answer_made, messages_sent

CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": '}}


def test_the_history_that_a_harness_sent() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    sent = [
        {"role": "system", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "lone \ud800"},
    ]
    assert messages_sent("openai_chat", json.dumps({"model": "m", "messages": sent})) == (
        Message(role="system", text="one\ntwo"),
        Message(role="assistant", text="", tool_calls=(ToolCall(id="c1", name="terminal", arguments='{"command": '),)),
        Message(role="tool", text="lone \ufffd", tool_call_id="c1"),
    )


def test_the_answer_that_it_received() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]}
    made = answer_made("openai_chat", json.dumps({"choices": [{"message": message}]}))
    assert (made.role, made.text, made.reasoning, [call.name for call in made.tool_calls]) == (
        "assistant",
        "",
        "hm",
        ["terminal"],
    )
    assert answer_made("openai_chat", json.dumps({"error": {"message": "no"}})) == Message(role="assistant", text="")


def test_what_is_no_request_is_refused() -> None:
    for body in ("{}", "[]", "no"):
        with pytest.raises(Refusal):
            messages_sent("openai_chat", body)
    for read in (messages_sent, answer_made):
        with pytest.raises(ValueError, match="unknown protocol 'x'"):
            read("x", "{}")
