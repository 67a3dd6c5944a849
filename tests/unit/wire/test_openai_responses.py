"""Responses: what is read, what is refused by name, and how Codex sends a history back."""

import re
from typing import Any

import orjson
import pytest
from wire_pieces import Answer, completion, request, streamed

from engine.wire.messages import ChatRequest, Message, Refusal, ToolCall
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.protocol import ArgumentsDelta, CallDelta, TextDelta
from engine.wire.recorded import answer_made, calls_made, messages_sent, tools_offered
from engine.wire.replay import opening

TOOL = {"type": "function", "name": "shell", "description": "d", "strict": False, "parameters": {"type": "object"}}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Helpers.",
    "tools": [{"type": "function", "name": "spawn", "description": "One more."}, {"type": "function", "name": "wait"}],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "out"}


def parse(**fields: Any) -> ChatRequest:
    return OPENAI_RESPONSES.parse(orjson.dumps({"model": "m", "input": "hi"} | fields))


def read(*items: Any) -> tuple[Message, ...]:
    return parse(input=list(items)).messages


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_reads_what_codex_sends() -> None:
    """A request as Codex makes it for a model that it does not know."""
    asked = parse(
        instructions="You are an agent.",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}] * 2},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "plain.aG0="},
            said("look") | {"phase": "commentary"},
            CALL | {"arguments": '{"command": ["ls"]}'},
            CALL | {"call_id": "c2", "namespace": "agents", "name": "spawn"},
            RESULT,
            RESULT
            | {"call_id": "c2", "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "user", "content": "more"},
        ],
        tools=[TOOL, AGENTS],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        text={"verbosity": "low", "format": {"type": "text"}},
        client_metadata={"x": "y"},
        metadata={},
        service_tier=None,
        max_output_tokens=40,
        temperature=0.1,
    )
    assert asked.messages == (
        Message(role="system", text="You are an agent."),
        Message(role="system", text="rules"),
        Message(role="user", text="one\none"),
        Message(
            role="assistant",
            text="look",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="c1", name="shell", arguments='{"command": ["ls"]}'),
                ToolCall(id="c2", name="agents.spawn", arguments="{}"),
            ),
        ),
        Message(role="tool", text="out", tool_call_id="c1"),
        Message(role="tool", text="a\nb", tool_call_id="c2"),
        Message(role="user", text="more"),
    )
    assert (asked.max_tokens, asked.stream, asked.include_usage, asked.logprobs) == (40, True, True, False)
    assert asked.tools == (
        {"type": "function", "function": {"name": "shell", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "agents.spawn", "description": "Helpers.\n\nOne more."}},
        {"type": "function", "function": {"name": "agents.wait"}},
    )


def test_a_plain_question() -> None:
    asked = parse(tools=[TOOL], tool_choice="none", instructions=None, store=None)
    assert asked.messages == (Message(role="user", text="hi"),)
    assert asked.tools == () and not asked.stream and asked.max_tokens is None


def test_items_of_one_turn_are_one_message_and_those_of_two_are_two() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    assert [m.text for m in read(said("one"), said("two"))] == ["one", "two"], "a turn without a call has ended"
    assert [m.reasoning for m in read(thought, said("one"), thought, CALL)] == ["t", "t"]
    (late,) = read(thought, said("before"), CALL, said(", after"))
    assert (late.text, late.reasoning, len(late.tool_calls)) == ("before, after", "t", 1), "calls wait for results"
    assert [m.role for m in read(CALL, RESULT, CALL, RESULT)] == ["assistant", "tool", "assistant", "tool"]
    assert read(said("")) == (Message(role="assistant", text=""),), "an empty turn is a turn"


def test_items_of_two_answers_are_two_turns_though_nothing_stands_between() -> None:
    """Codex keeps the items that it got of an answer whose stream broke; those of the next answer follow them."""
    kept, call = said("one") | {"id": "msg_x1_0"}, CALL | {"id": "fc_x2_0"}
    assert [(m.text, len(m.tool_calls)) for m in read(kept, call)] == [("one", 0), ("", 1)]
    assert [(m.text, len(m.tool_calls)) for m in read(kept, CALL | {"id": "fc_x1_1"})] == [("one", 1)]
    assert [(m.text, len(m.tool_calls)) for m in read(kept, CALL | {"id": "fc_of-its-own"})] == [("one", 1)]


def test_reasoning_is_found_wherever_the_client_kept_it() -> None:
    def reasoning(**fields: Any) -> str:
        return read({"type": "reasoning", "summary": []} | fields)[0].reasoning

    summary = [{"type": "summary_text", "text": "s"}]
    assert reasoning(content=[{"type": "reasoning_text", "text": "c"}], encrypted_content="plain.aG0=") == "c"
    assert reasoning(summary=summary, encrypted_content="plain.aG0=") == "hm"
    assert reasoning(summary=summary, encrypted_content="gAAAA") == "s"
    assert reasoning(summary=summary) == "s"
    assert reasoning() == "" == reasoning(encrypted_content=None)
    for foreign in ("gAAAA", "plain.!", "plain./w=="):
        with pytest.raises(Refusal, match="could not be verified") as caught:
            reasoning(encrypted_content=foreign)
        assert (caught.value.code, caught.value.param) == ("invalid_encrypted_content", "input[0].encrypted_content")


def test_reasoning_survives_a_client_that_keeps_only_what_is_encrypted() -> None:
    meant = Message(role="assistant", text="a", reasoning="hm 😀")
    items = OPENAI_RESPONSES.response(completion(meant))["output"]
    kept = [{name: item[name] for name in item if (item["type"], name) != ("reasoning", "content")} for item in items]
    assert read(*kept) == (meant,)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c"}]}, "input[0].type"),
        ({"input": [{"type": "local_shell_call"}]}, "input[0].type"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [CALL | {"call_id": ""}]}, "input[0].call_id"),
        ({"input": [CALL | {"name": None}]}, "input[0].name"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"input": [CALL | {"namespace": 3}]}, "input[0].namespace"),
        ({"input": [CALL, RESULT | {"call_id": None}]}, "input[1].call_id"),
        ({"input": [CALL, RESULT | {"output": None}]}, "input[1].output"),
        ({"input": [CALL, RESULT | {"output": [{"type": "input_image"}]}]}, "input[1].output[0].type"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "x"}]}]}, "input[0].summary[0].type"),
        ({"input": [{"type": "reasoning", "encrypted_content": 3}]}, "input[0].encrypted_content"),
        ({"instructions": ["x"]}, "instructions"),
        ({"tools": {}}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "custom", "name": "apply_patch"}]}, "tools[1].type"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools[0].name"),
        ({"tools": [TOOL | {"name": "a.b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": []}]}, "tools[0].parameters"),
        ({"tools": [TOOL | {"description": 3}]}, "tools[0].description"),
        ({"tools": [TOOL | {"strict": True}]}, "tools[0].strict"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"async": True}]}, "tools[0].async"),
        ({"tools": [TOOL | {"allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [AGENTS | {"name": ""}]}, "tools[0].name"),
        ({"tools": [AGENTS | {"tools": None}]}, "tools[0].tools"),
        ({"tools": [AGENTS | {"description": 3}]}, "tools[0].description"),
        ({"tools": [AGENTS | {"tools": [{"type": "custom", "name": "x"}]}]}, "tools[0].tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "shell"}}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"include": "x"}, "include"),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include[1]"),
        ({"include": [{}]}, "include[0]"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "high", "budget": 3}}, "reasoning.budget"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": "text"}}, "text.format"),
        ({"text": {"style": "x"}}, "text.style"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": [1]}, "top_p"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"text": {"verbosity": 3}}, "text.verbosity"),
        ({"prompt_cache_key": 3}, "prompt_cache_key"),
        ({"tools": [TOOL | {"output_schema": "x"}]}, "tools[0].output_schema"),
        ({"tools": [TOOL | {"examples": ["x"]}]}, "tools[0].examples"),
        ({"tools": [AGENTS | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(**fields)
    problem = caught.value
    assert (problem.status, problem.kind, problem.param) == (400, "invalid_request_error", param)
    error = OPENAI_RESPONSES.error(problem)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]


def test_a_refused_tool_is_named() -> None:
    for kind in ("web_search", "custom", "image_generation", "tool_search", "local_shell"):
        with pytest.raises(Refusal, match=f"Unsupported tool type '{kind}' in 'tools\\[0\\]'"):
            parse(tools=[{"type": kind}])


def test_unknown_parameters_are_refused_in_the_protocols_own_words() -> None:
    with pytest.raises(Refusal, match=re.escape("Unknown parameter: 'audio'.")) as caught:
        parse(audio={})
    assert caught.value.code == "unknown_parameter"


# ---------------------------------------------------------------- answers


def test_a_call_of_a_function_in_a_namespace_goes_out_as_the_client_knows_it() -> None:
    calls = tuple(ToolCall(id=f"c{i}", name=name, arguments="{}") for i, name in enumerate(("agents.spawn", "a", ".b")))
    output = OPENAI_RESPONSES.response(completion(Message(role="assistant", text="", tool_calls=calls)))["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [
        ("agents", "spawn"),
        (None, "a"),
        (None, ".b"),
    ]
    assert read(*output)[0].tool_calls == calls


def test_only_one_item_is_open_at_a_time() -> None:
    """Codex takes a delta for the item that was added last."""
    deltas = (TextDelta("a"), CallDelta(id="c1", name="f"), ArgumentsDelta("{}"), CallDelta(id="c2", name="f"))
    calls = (ToolCall(id="c1", name="f", arguments="{}"), ToolCall(id="c2", name="f", arguments=""))
    raw = streamed(OPENAI_RESPONSES, Answer(completion(Message(role="assistant", text="a", tool_calls=calls)), deltas))
    kinds = re.findall(rb"event: response\.(\S+)", raw)
    item = [b"output_item.added", b"function_call_arguments.done", b"output_item.done"]
    assert kinds == [
        *(b"created", b"in_progress"),
        *(b"output_item.added", b"content_part.added", b"output_text.delta", b"output_text.done"),
        *(b"content_part.done", b"output_item.done"),
        *(item[0], b"function_call_arguments.delta", *item[1:]),
        *item,
        b"completed",
    ]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (OPENAI_RESPONSES.context_overflow(100, 120), "context_length_exceeded"),
        (Refusal("broken", status=500, kind="server_error"), "server_error"),
        (Refusal("over", status=503, kind="server_error"), "server_error"),
        (Refusal("slower", status=429), "rate_limit_exceeded"),
        (Refusal("no more turns", code="max_turns_reached"), "invalid_prompt"),
    ],
)
def test_a_failed_stream_says_whether_to_try_again(refusal: Refusal, code: str) -> None:
    stream = OPENAI_RESPONSES.stream(opening(completion(Message(role="assistant", text=""))), request())
    _, last, _ = (stream.open() + stream.fail(refusal)).rsplit(b"\n\n", 2)
    assert last.startswith(b"event: response.failed\n")
    body = orjson.loads(last.partition(b"data: ")[2])
    assert body["response"]["status"] == "failed" and body["response"]["usage"] is None
    assert body["response"]["error"] == {"code": code, "message": refusal.message}


def test_arguments_need_a_call() -> None:
    stream = OPENAI_RESPONSES.stream(opening(completion(Message(role="assistant", text=""))), request())
    with pytest.raises(ValueError, match="arguments without a call"):
        stream.write(ArgumentsDelta("{}"))


# ---------------------------------------------------------------- what was recorded


def test_recorded_bodies_are_read() -> None:
    sent = orjson.dumps({"model": "m", "instructions": "i", "input": "hi", "tools": [TOOL, AGENTS]}).decode()
    assert tools_offered("openai_responses", sent) == {"shell", "agents.spawn", "agents.wait"}
    assert tools_offered("openai_responses", '{"tools": [], "tool_choice": "none"}') == frozenset()
    assert [message.text for message in messages_sent("openai_responses", sent)] == ["i", "hi"]
    meant = Message(
        role="assistant",
        text="a",
        reasoning="r",
        tool_calls=(ToolCall(id="c1", name="agents.spawn", arguments='{"x": '),),
    )
    received = orjson.dumps(OPENAI_RESPONSES.response(completion(meant))).decode()
    assert answer_made("openai_responses", received) == meant
    assert calls_made("openai_responses", received) == meant.tool_calls
    assert answer_made("openai_responses", '{"error": {"message": "no"}}') == Message(role="assistant", text="")


def test_what_a_tool_returns_is_shown_to_the_model_too() -> None:
    schema = {"type": "object", "properties": {"lines": {"type": "integer"}}}
    (tool,) = parse(tools=[TOOL | {"output_schema": schema}]).tools
    assert tool["function"]["output_schema"] == schema


def test_labels_and_wishes_of_newer_clients_are_taken() -> None:
    parse(prompt_cache_options={"mode": "implicit"}, reasoning={"effort": "low", "context": "auto", "mode": "fast"})
