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


def test_bodies_of_anthropic_messages() -> None:
    from engine.wire.recorded import calls_made, tools_offered

    tool = {"name": "Bash", "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}
    asked = {"model": "m", "max_tokens": 9, "tools": [tool], "messages": [{"role": "user", "content": "hi"}]}
    assert messages_sent("anthropic", json.dumps(asked)) == (Message(role="user", text="hi"),)
    assert tools_offered("anthropic", json.dumps(asked)) == {"Bash"}
    assert tools_offered("anthropic", json.dumps(asked | {"tool_choice": {"type": "none"}})) == frozenset()
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Look."}, use]
    made = answer_made("anthropic", json.dumps({"type": "message", "content": content}))
    call = ToolCall(id="c1", name="Bash", arguments='{"command":"ls"}')
    assert made == Message(role="assistant", text="Look.", reasoning="hm", tool_calls=(call,))
    assert calls_made("anthropic", json.dumps({"type": "error", "error": {}})) == ()
