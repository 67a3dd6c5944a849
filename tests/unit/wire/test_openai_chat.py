"""Chat Completions: what is read, what is refused by name, and that streamed and unstreamed are the same message."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire import replay
from engine.wire.messages import ChatRequest, Completion, Message, Refusal, TokenLogprob, ToolCall, Usage
from engine.wire.openai_chat import OPENAI_CHAT

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "terminal", "description": "d", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatRequest:
    return OPENAI_CHAT.parse(orjson.dumps({"model": "m", "messages": [USER]} | fields))


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(**fields)
    return caught.value


def test_reads_a_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    request = parse(
        messages=[
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "out", "cache_control": {"type": "ephemeral"}},
        ],
        tools=[TOOL],
        max_tokens=50,
        max_completion_tokens=40,
        temperature=0.1,
        seed=3,
    )
    assert request.messages == (
        Message(role="system", text="rules"),
        Message(role="user", text="one\ntwo"),
        Message(
            role="assistant",
            text="",
            reasoning="hm",
            tool_calls=(ToolCall(id="c1", name="terminal", arguments="{}"),),
        ),
        Message(role="tool", text="out", tool_call_id="c1"),
    )
    assert request.max_tokens == 40
    assert not request.stream and request.tool_names == {"terminal"}


def test_harmless_forms_are_accepted() -> None:
    parse(n=1, stop=None, response_format={"type": "text"}, tool_choice="auto", parallel_tool_calls=True)
    parse(top_logprobs=0, logit_bias={}, modalities=["text"], store=False, user="u", metadata={}, tools=None)
    assert parse(tools=[TOOL], tool_choice="none").tools == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"stop": ["x"]}, "stop"),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "x"}}]}]},
            "messages[0].tool_calls[0].arguments",
        ),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "tools[0].function.strict"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"audio": {}}, "audio"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"seed": 1.5}, "seed"),
        ({"frequency_penalty": []}, "frequency_penalty"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"metadata": "x"}, "metadata"),
        ({"user": 3}, "user"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    problem = refusal(**fields)
    assert (problem.status, problem.kind, problem.param) == (400, "invalid_request_error", param)
    error = OPENAI_CHAT.error(problem)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"model": "m", "messages": "\xc3\x28"}',
        b'{"model": "m", "max_tokens": NaN, "messages": []}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"[" * 100_000,
        b'{"model": "m", "max_tokens": ' + b"9" * 5000 + b', "messages": "\\ud800"}',
    ],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        OPENAI_CHAT.parse(body)
    assert caught.value.status == 400


def test_a_tool_schema_nested_too_deeply_is_refused() -> None:
    nested = b'{"a":' * 400 + b"1" + b"}" * 400
    function = b'{"name":"t","parameters":' + nested + b"}"
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":%s}]}'
    with pytest.raises(Refusal, match="nested too deeply"):
        OPENAI_CHAT.parse(body % function)


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud83d b \\ud83d\\ude00"}]}'
    assert OPENAI_CHAT.parse(body).messages[0].text == "a� b 😀"


def test_a_speakers_name_is_refused_but_a_tools() -> None:
    """The model could not tell the speakers apart; of a tool's result the call's id says all."""
    said = [
        {"role": "user", "content": "x", "name": ""},
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "t"},
    ]
    assert len(OPENAI_CHAT.parse(orjson.dumps({"model": "m", "messages": said})).messages) == 2
    with pytest.raises(Refusal, match=r"messages\[0\].name': the model's format has no place for a speaker's name"):
        OPENAI_CHAT.parse(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x", "name": "bob"}]}))


def test_cache_marks_on_tools_are_no_part_of_them() -> None:
    """They move with the end of a conversation: shown to the model, each move would open a segment."""
    mark = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "t"}
    tool = {"type": "function", "function": function}
    for marked in (tool | mark, tool | {"function": function | mark}):
        asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [marked]}
        assert OPENAI_CHAT.parse(orjson.dumps(asked)).tools == (tool,)


def test_tools_in_another_order_are_the_same_tools() -> None:
    other = {"type": "function", "function": {"name": "edit"}}
    assert parse(tools=[TOOL, other]).tools_key == parse(tools=[other, TOOL]).tools_key
    assert parse(tools=[TOOL]).tools_key != parse(tools=[other]).tools_key


# ---------------------------------------------------------------- responses

TEXT = st.text(max_size=30)
CALLS = st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT), max_size=3)


def completion(message: Message, **more: Any) -> Completion:
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
    fields: dict[str, Any] = {"finish_reason": "tool_calls" if message.tool_calls else "stop"} | more
    return Completion(id="c", created=1, model="m", message=message, usage=usage, **fields)


def accumulate(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from a stream's deltas."""
    message: dict[str, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for part in value:
                        calls = message.setdefault("tool_calls", [])
                        if part["index"] == len(calls):
                            calls.append({k: v for k, v in part.items() if k != "index"})
                        else:
                            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
                elif isinstance(message.get(name), str) and name != "role":
                    message[name] += value
                else:
                    message[name] = value
    return message


def stream(done: Completion, piece: int, include_usage: bool) -> list[dict[str, Any]]:
    request = ChatRequest(
        model="m", messages=(), tools=(), max_tokens=None, stream=True, include_usage=include_usage, logprobs=False
    )
    raw = b"".join(replay.events(OPENAI_CHAT, done, request, piece))
    blocks = raw.split(b"\n\n")
    assert blocks[-2:] == [b"data: [DONE]", b""]
    return [orjson.loads(block.removeprefix(b"data: ")) for block in blocks[:-2]]


@given(
    text=TEXT,
    reasoning=TEXT,
    calls=CALLS,
    piece=st.integers(1, 40),
    include_usage=st.booleans(),
    finish=st.sampled_from(["stop", "length"]),
)
def test_streamed_and_unstreamed_are_the_same_message(
    text: str, reasoning: str, calls: list[ToolCall], piece: int, include_usage: bool, finish: str
) -> None:
    message = Message(role="assistant", text=text, reasoning=reasoning, tool_calls=tuple(calls))
    done = completion(message, finish_reason=finish)
    whole = OPENAI_CHAT.response(done)
    chunks = stream(done, piece, include_usage)
    assert accumulate(chunks) == whole["choices"][0]["message"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert all(delta.get("tool_calls", True) for delta in deltas), "no empty list is a call (litellm#29286)"
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] == finish and set(reasons[:-1]) == {None}
    if include_usage:
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_a_text_turn_has_no_tool_calls_at_all() -> None:
    message = OPENAI_CHAT.response(completion(Message(role="assistant", text="hello")))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "hello", "refusal": None}
    empty = OPENAI_CHAT.response(completion(Message(role="assistant", text="")))["choices"][0]["message"]
    assert empty["content"] == ""


def test_logprobs_are_one_per_token() -> None:
    tokens = [TokenLogprob(text="a", logprob=-0.5), TokenLogprob(text="�", logprob=-1.0)]
    body = OPENAI_CHAT.response(completion(Message(role="assistant", text="a"), logprobs=tokens))
    content = body["choices"][0]["logprobs"]["content"]
    assert [(item["token"], item["logprob"], item["bytes"]) for item in content] == [
        ("a", -0.5, [97]),
        ("�", -1.0, None),
    ]


def test_overflow_is_the_protocols_own_error() -> None:
    overflow = OPENAI_CHAT.context_overflow(100, 120)
    assert overflow.status == 400, "a 5xx would be asked again"
    error = OPENAI_CHAT.error(overflow)["error"]
    assert error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error"
    assert "maximum context length is 100 tokens" in error["message"] and "120 tokens" in error["message"]
