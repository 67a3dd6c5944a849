"""Bodies that are wrong anywhere: a request or a Refusal, nothing else, in both OpenAI protocols."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_pieces import changed, places

from engine.wire.messages import ChatRequest, Refusal
from engine.wire.openai_chat import OPENAI_CHAT
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.protocol import WireProtocol

FUNCTION = {"name": "t", "description": "d", "parameters": {"type": "object"}, "strict": False}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "out"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "n": 1,
    "response_format": {"type": "text"},
}
RESPONSES = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "r"}],
            "encrypted_content": "plain.aG0=",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "t", "namespace": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
    ],
    "tools": [
        {"type": "function"} | FUNCTION,
        {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function"} | FUNCTION]},
    ],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 5,
    "store": False,
}
CASES = [(OPENAI_CHAT, CHAT), (OPENAI_RESPONSES, RESPONSES)]
BOTH = pytest.mark.parametrize(("protocol", "body"), CASES, ids=[protocol.name for protocol, _ in CASES])


def parsed(protocol: WireProtocol, raw: bytes) -> ChatRequest | None:
    """None: refused, in the protocol's words."""
    try:
        request = protocol.parse(raw)
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
        body = orjson.dumps(protocol.error(refusal))
        assert len(body) < 2000, "a refusal is kept: it does not repeat what was sent"
        return None
    for message in request.messages:
        orjson.dumps([message.text, message.reasoning, message.to_chat()])
    assert isinstance(request.tools_key, bytes) and isinstance(request.tool_names, frozenset)
    return request


@BOTH
def test_the_body_itself_is_a_request(protocol: WireProtocol, body: Any) -> None:
    assert parsed(protocol, orjson.dumps(body)) is not None


WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "x" * 5000,
    [],
    {},
    [None],
    [[]],
    {"": None},
    {"x" * 5000: 1},
]


@BOTH
def test_wrong_types_at_every_place(protocol: WireProtocol, body: Any) -> None:
    for place in places(body):
        for value in WRONG:
            parsed(protocol, json.dumps(changed(body, place, value)).encode())


@BOTH
def test_deep_nesting_at_every_place(protocol: WireProtocol, body: Any) -> None:
    mark = "d4c0"
    for place in places(body):
        raw = json.dumps(changed(body, place, mark)).encode()
        for depth in (200, 260, 900, 5000):
            for left, right in ((b"[", b"]"), (b'{"type":', b"}")):
                parsed(protocol, raw.replace(b'"d4c0"', left * depth + b"1" + right * depth))


@BOTH
def test_lone_surrogates_at_every_place(protocol: WireProtocol, body: Any) -> None:
    for place in places(body):
        request = parsed(protocol, json.dumps(changed(body, place, "a\ud83d")).encode())
        if request is not None:
            assert "\ud83d" not in repr(request)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(data=st.data())
def test_any_json_at_any_places(data: st.DataObject) -> None:
    protocol, body = data.draw(st.sampled_from(CASES))
    changing: Any = body
    for _ in range(data.draw(st.integers(1, 3))):
        changing = changed(changing, data.draw(st.sampled_from(list(places(changing)) or [()])), data.draw(JSON))
    parsed(protocol, json.dumps(changing).encode())


@BOTH
@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": NaN}', b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000],
)
def test_what_is_no_request_is_refused(protocol: WireProtocol, body: Any, raw: bytes) -> None:
    assert parsed(protocol, raw) is None
