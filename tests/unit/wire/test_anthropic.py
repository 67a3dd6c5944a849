"""Anthropic Messages, answers: the official SDK reads the same message from the body and from the stream."""

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire.anthropic import PING, AnthropicMessages
from engine.wire.messages import ChatRequest, Completion, Message, Refusal, ToolCall, Usage
from engine.wire.protocol import (
    ArgumentsDelta,
    CallDelta,
    Delta,
    EventStream,
    Opening,
    ReasoningDelta,
    TextDelta,
    WireProtocol,
)

PROTOCOL = AnthropicMessages()
WIRE: WireProtocol = PROTOCOL
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
REQUEST = ChatRequest(model="m", messages=(), tools=(), max_tokens=5, stream=True, include_usage=True, logprobs=False)


JSON = {"content-type": "application/json"}
ANSWER: list[httpx2.Response] = []
JUDGE = anthropic.Anthropic(
    api_key="k",
    base_url="http://server",
    max_retries=0,
    http_client=httpx2.Client(transport=httpx2.MockTransport(lambda _: ANSWER.pop())),
)
"""The official SDK against a server that gives the last answer set."""


def judge(answer: httpx2.Response) -> anthropic.Anthropic:
    ANSWER[:] = [answer]
    return JUDGE


def read_whole(done: Completion) -> dict[str, Any]:
    answer = httpx2.Response(200, content=orjson.dumps(PROTOCOL.response(done)), headers=JSON)
    return judge(answer).messages.create(**ASKED).to_dict()


def read_stream(raw: bytes, size: int = 1 << 20) -> dict[str, Any]:
    """`size`: bytes that the network carries at once."""
    pieces = (raw[start : start + size] for start in range(0, len(raw), size))
    answer = httpx2.Response(200, content=pieces, headers={"content-type": "text/event-stream"})
    with judge(answer).messages.stream(**ASKED) as stream:
        return stream.get_final_message().to_dict()


def completion(
    text: str = "", reasoning: str = "", calls: tuple[ToolCall, ...] = (), finish: str | None = None
) -> Completion:
    return Completion(
        id="msg_1",
        created=1,
        model="m",
        message=Message(role="assistant", text=text, reasoning=reasoning, tool_calls=calls),
        finish_reason=finish or ("tool_calls" if calls else "stop"),  # type: ignore[arg-type]
        usage=Usage(prompt_tokens=50, completion_tokens=3, cached_tokens=32),
    )


def opened(done: Completion) -> EventStream:
    usage = Usage(prompt_tokens=done.usage.prompt_tokens, completion_tokens=0, cached_tokens=done.usage.cached_tokens)
    return PROTOCOL.stream(Opening(id=done.id, created=done.created, model=done.model, usage=usage), REQUEST)


def streamed(done: Completion, deltas: list[Delta], between: bytes = b"") -> bytes:
    stream = opened(done)
    return between.join([stream.open(), *(stream.write(delta) for delta in deltas), stream.close(done)])


def in_order(done: Completion) -> list[Delta]:
    message = done.message
    deltas: list[Delta] = [ReasoningDelta(message.reasoning), TextDelta(message.text)]
    for call in message.tool_calls:
        deltas += [CallDelta(call.id, call.name), ArgumentsDelta(call.arguments)]
    return deltas


def events(raw: bytes) -> Iterator[dict[str, Any]]:
    for block in raw.removesuffix(b"\n\n").split(b"\n\n"):
        kind, data = re.fullmatch(rb"event: (.+)\ndata: (.+)", block).groups()  # type: ignore[union-attr]
        event = json.loads(data)
        assert event["type"] == kind.decode()
        yield event


# ---------------------------------------------------------------- streamed and unstreamed are the same message

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.one_of(
    st.dictionaries(TEXT, VALUE, max_size=3).map(lambda value: json.dumps(value, indent=1)),
    st.dictionaries(TEXT, VALUE, min_size=1, max_size=2).map(lambda value: json.dumps(value)[:-2]),
    VALUE.map(json.dumps),
    TEXT,
    st.sampled_from(["", "{}", "null", "[]", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "{" * 300]),
    st.just('{"a": 123456789012345678901234567890, "a": -0.0}'),
)
CALLS = st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=ARGUMENTS), max_size=3).map(tuple)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Completion, list[Delta]]:
    """A message and deltas that make it: cut anywhere, text and calls in any order."""

    def cut(text: str) -> list[str]:
        places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]

    done = completion(draw(TEXT), draw(TEXT), draw(CALLS), draw(st.sampled_from(["stop", "tool_calls", "length"])))
    deltas: list[Delta] = [ReasoningDelta(piece) for piece in cut(done.message.reasoning)]
    texts = [TextDelta(piece) for piece in cut(done.message.text)]
    calls = [
        [CallDelta(call.id, call.name), *(ArgumentsDelta(piece) for piece in cut(call.arguments))]
        for call in done.message.tool_calls
    ]
    for is_text in draw(st.permutations([True] * len(texts) + [False] * len(calls))):
        deltas += [texts.pop(0)] if is_text else calls.pop(0)
    return done, deltas


@given(answer=answers(), size=st.integers(1, 200))
def test_the_sdk_reads_the_same_message_from_body_and_stream(answer: tuple[Completion, list[Delta]], size: int) -> None:
    done, deltas = answer
    whole = read_whole(done)
    made = read_stream(streamed(done, deltas), size)
    assert json.dumps(made, sort_keys=True) == json.dumps(whole, sort_keys=True)  # 1 is not 1.0
    assert whole == json.loads(orjson.dumps(PROTOCOL.response(done)))
    message = done.message
    blocks = {kind: [block for block in whole["content"] if block["type"] == kind] for kind in ORDER}
    assert [block["type"] for block in whole["content"]] == [kind for kind in ORDER for _ in blocks[kind]]
    assert "".join(block["thinking"] for block in blocks["thinking"]) == message.reasoning
    assert "".join(block["text"] for block in blocks["text"]) == message.text
    calls = [(block["id"], block["name"]) for block in blocks["tool_use"]]
    assert calls == [(call.id, call.name) for call in message.tool_calls]
    assert all(block["thinking"] and block["signature"] for block in blocks["thinking"])
    assert all(block["text"] for block in blocks["text"])


ORDER = ("thinking", "text", "tool_use")
GROWS_BY = {
    "thinking": {"thinking_delta", "signature_delta"},
    "text": {"text_delta"},
    "tool_use": {"input_json_delta"},
}


@given(answer=answers())
def test_blocks_begin_and_end_one_after_another(answer: tuple[Completion, list[Delta]]) -> None:
    """And each grows by deltas of its own kind: no text by an empty `input_json_delta` (litellm#29286)."""
    done, deltas = answer
    kinds = [event["type"] for event in events(streamed(done, deltas))]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"]
    open_block, begun, kind = None, 0, ""
    for event in events(streamed(done, deltas)):
        if event["type"] == "content_block_start":
            assert open_block is None and event["index"] == begun
            open_block, begun, kind = event["index"], begun + 1, event["content_block"]["type"]
        elif event["type"] in ("content_block_delta", "content_block_stop"):
            assert event["index"] == open_block
            assert event["type"] == "content_block_stop" or event["delta"]["type"] in GROWS_BY[kind]
            open_block = None if event["type"] == "content_block_stop" else open_block
    assert open_block is None


CALL = ToolCall(id="c1", name="Bash", arguments='{"command": "ls"}')
OTHER = ToolCall(id="c2", name="Read", arguments='{"file_path": "a"}')


@pytest.mark.parametrize(
    ("done", "types", "stop"),
    [
        (completion(calls=(CALL,)), ["tool_use"], "tool_use"),
        (completion("hello"), ["text"], "end_turn"),
        (completion(reasoning="hm", calls=(CALL,)), ["thinking", "tool_use"], "tool_use"),
        (completion("a", "hm", (CALL, OTHER)), ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
        (completion(), [], "end_turn"),
        (completion(reasoning="hm", finish="length"), ["thinking"], "max_tokens"),
        (completion("a", calls=(CALL,), finish="length"), ["text", "tool_use"], "max_tokens"),
        (completion(calls=(CALL,), finish="stop"), ["tool_use"], "tool_use"),
    ],
)
def test_blocks_and_stop_reason(done: Completion, types: list[str], stop: str) -> None:
    for message in (read_whole(done), read_stream(streamed(done, in_order(done)))):
        assert [block["type"] for block in message["content"]] == types
        assert (message["stop_reason"], message["stop_sequence"]) == (stop, None)


def test_text_between_calls_joins_the_text_before_them() -> None:
    done = completion("one two", calls=(CALL, OTHER))
    first, second = in_order(done)[2:4], in_order(done)[4:]
    deltas = [*first, TextDelta("one"), *second, TextDelta(" two")]
    assert read_stream(streamed(done, deltas)) == read_whole(done)
    assert [block["type"] for block in read_whole(done)["content"]] == ["text", "tool_use", "tool_use"]


def test_reasoning_after_text_is_a_defect_of_the_caller() -> None:
    stream = opened(completion("a", "b"))
    stream.write(TextDelta("a"))
    with pytest.raises(ValueError, match="reasoning after text"):
        stream.write(ReasoningDelta("b"))


def test_text_flows_and_calls_wait_for_the_end() -> None:
    done = completion("ab", "r", (CALL,))
    stream = opened(done)
    stream.open()
    assert b'"thinking":"r"' in stream.write(ReasoningDelta("r"))
    assert b'"text":"a"' in stream.write(TextDelta("a")) and b'"text":"b"' in stream.write(TextDelta("b"))
    assert stream.write(CallDelta("c1", "Bash")) == stream.write(ArgumentsDelta(CALL.arguments)) == b""
    assert b'"partial_json":"{\\"command\\":\\"ls\\"}"' in stream.close(done)


@pytest.mark.parametrize("arguments", ['{"command": "rm', "ls", "", "[1]", "null", '{"a": NaN}', '{"command": "ls"}}'])
def test_a_malformed_call_survives_without_input(arguments: str) -> None:
    broken = ToolCall(id="c1", name="Bash", arguments=arguments)
    done = completion(calls=(broken, OTHER))
    assert read_stream(streamed(done, in_order(done))) == read_whole(done)
    first, second = read_whole(done)["content"]
    assert first == {"type": "tool_use", "id": "c1", "name": "Bash", "input": {}}
    assert second["input"] == {"file_path": "a"}
    # What the client makes of it can be sent again.
    history = [
        ASKED["messages"][0],
        {"role": "assistant", "content": read_whole(done)["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "missing command"}]},
    ]
    echoed = PROTOCOL.parse(orjson.dumps(ASKED | {"messages": history})).messages[1]
    assert [call.id for call in echoed.tool_calls] == ["c1", "c2"]


def test_an_echoed_answer_is_the_message_that_was_given() -> None:
    done = completion("a", "hm", (CALL, OTHER))
    history = [{"role": "assistant", "content": read_whole(done)["content"]}, ASKED["messages"][0]]
    echoed = PROTOCOL.parse(orjson.dumps(ASKED | {"messages": history})).messages[0]
    assert (echoed.text, echoed.reasoning) == ("a", "hm")
    assert [call.name for call in echoed.tool_calls] == ["Bash", "Read"]
    assert [json.loads(call.arguments) for call in echoed.tool_calls] == [{"command": "ls"}, {"file_path": "a"}]


def test_usage_tells_cached_tokens_apart_and_is_cumulative() -> None:
    done = completion("hello")
    counts = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 32, "input_tokens": 18}
    raw = streamed(done, in_order(done))
    for message in (read_whole(done), read_stream(raw)):
        assert message["usage"] == counts | {"output_tokens": 3}
    made = {event["type"]: event for event in events(raw)}
    assert made["message_start"]["message"]["usage"] == counts | {"output_tokens": 0}
    assert made["message_start"]["message"]["content"] == [] and made["message_start"]["message"]["stop_reason"] is None
    assert made["message_delta"]["usage"] == counts | {"output_tokens": 3}


def test_a_ping_may_stand_anywhere() -> None:
    done = completion("ab", "hm", (CALL,))
    assert read_stream(streamed(done, in_order(done), between=PING)) == read_whole(done)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (503, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
def test_errors_are_the_protocols_own(status: int, kind: str, raised: type[anthropic.APIStatusError]) -> None:
    body = PROTOCOL.error(Refusal("why", status=status, kind="server_error"))
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}}
    answer = httpx2.Response(status, content=orjson.dumps(body), headers=JSON)
    with pytest.raises(raised) as caught:
        judge(answer).messages.create(**ASKED)
    assert (caught.value.type, caught.value.api_message) == (kind, "why")


@pytest.mark.parametrize("written", range(5))
def test_a_stream_that_fails_never_looks_finished(written: int) -> None:
    done = completion("ab", "hm", (CALL,))
    stream = opened(done)
    raw = stream.open() + b"".join(stream.write(delta) for delta in in_order(done)[:written])
    raw += stream.fail(Refusal("the engine failed", status=500))
    assert b"message_stop" not in raw and b"tool_use" not in raw
    with pytest.raises(anthropic.APIStatusError) as caught:
        read_stream(raw)
    assert (caught.value.type, caught.value.api_message) == ("api_error", "the engine failed")


def test_overflow_is_the_error_that_starts_a_compaction() -> None:
    overflow = PROTOCOL.context_overflow(32768, 40001)
    assert (overflow.status, overflow.message) == (400, "prompt is too long: 40001 tokens > 32768 maximum")
    assert PROTOCOL.error(overflow)["error"]["type"] == "invalid_request_error"


def test_the_sdk_reads_a_count() -> None:
    answer = httpx2.Response(200, content=orjson.dumps(PROTOCOL.count(17)), headers=JSON)
    counted = judge(answer).messages.count_tokens(model="m", messages=ASKED["messages"])
    assert counted.input_tokens == 17
