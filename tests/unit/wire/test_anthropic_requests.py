"""Anthropic Messages, requests: what is read, what is refused by name, and that junk is no worse than refused."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.wire.anthropic import AnthropicMessages
from engine.wire.messages import ChatRequest, Message, Refusal, ToolCall

PROTOCOL = AnthropicMessages()
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "Bash", "description": "d", "input_schema": {"type": "object"}}
READ = {"type": "function", "function": {"name": "Bash", "description": "d", "parameters": {"type": "object"}}}
CACHE = {"type": "ephemeral"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def parse(**fields: Any) -> ChatRequest:
    return PROTOCOL.parse(orjson.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields))


def conversation(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return parse(messages=list(messages)).messages


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(**fields)
    return caught.value


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": CACHE}


def use(call: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Bash", "input": given}


def result(call: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call} | more


def test_reads_a_conversation() -> None:
    request = parse(
        system=[text("You are a coder."), text("Be brief.")],
        messages=[
            {"role": "user", "content": "do it"},
            assistant(
                {"type": "redacted_thinking", "data": "opaque"},
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                text("I look."),
                use("c1", command="ls", timeout=5),
                use("c2"),
            ),
            user(
                result("c2", content=[text("two"), text(""), text("parts")], is_error=True),
                result("c1", content="out", is_error=False, cache_control=CACHE),
                text("go on"),
            ),
            {"role": "system", "content": "the date changed"},
        ],
        tools=[TOOL | {"cache_control": CACHE}, {"name": "Plan", "input_schema": {}}],
        cache_control=CACHE,
        stream=True,
    )
    assert request.messages == (
        Message(role="system", text="You are a coder.\nBe brief."),
        Message(role="user", text="do it"),
        Message(
            role="assistant",
            text="I look.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="c1", name="Bash", arguments='{"command":"ls","timeout":5}'),
                ToolCall(id="c2", name="Bash", arguments="{}"),
            ),
        ),
        Message(role="tool", text="Error: two\nparts", tool_call_id="c2", is_error=True),
        Message(role="tool", text="out", tool_call_id="c1"),
        Message(role="user", text="go on"),
        Message(role="system", text="the date changed"),
    )
    assert request.tools == (READ, {"type": "function", "function": {"name": "Plan", "parameters": {}}})
    assert (request.model, request.max_tokens, request.stream) == ("m", 9, True)
    assert request.include_usage and not request.logprobs and request.tool_names == {"Bash", "Plan"}


def test_a_string_and_its_block_are_the_same_text() -> None:
    assert conversation(USER) == conversation(user(text("hi")))
    assert parse(system="s").messages == parse(system=[text("s")]).messages
    whole = conversation(USER, assistant(use("c")), user(result("c", content="x")))
    assert whole == conversation(USER, assistant(use("c")), user(result("c", content=[text("x")])))
    assert parse(system="").messages == parse(system=[]).messages == parse().messages


def test_neighbours_of_one_role_are_one_turn() -> None:
    calls = (use("c1"), use("c2"))
    whole = conversation(
        USER, assistant(text("a"), *calls), user(result("c1", content="1"), result("c2", content="2"), text("now"))
    )
    parts = conversation(
        USER,
        assistant(text("a")),
        *(assistant(call) for call in calls),
        user(result("c1", content="1"), text("now")),
        user(result("c2", content="2")),
    )
    assert parts == whole
    assert [message.role for message in whole] == ["user", "assistant", "tool", "tool", "user"]
    assert conversation(USER, USER) == (Message(role="user", text="hi\nhi"),)


def test_a_cut_text_is_joined_without_a_border() -> None:
    assert conversation(assistant(text("one,"), use("c"), text(" two")), USER)[0].text == "one, two"


def test_a_result_without_content_is_empty() -> None:
    made = conversation(USER, assistant(use("c")), user(result("c")))
    assert made[-1] == Message(role="tool", text="", tool_call_id="c")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", "Error"),
        ("no such file", "Error: no such file"),
        ("Exit code 1\nx", "Exit code 1\nx"),
        ("<tool_use_error>String not found</tool_use_error>", "<tool_use_error>String not found</tool_use_error>"),
        ("2 FAILED", "2 FAILED"),
    ],
)
def test_the_model_reads_that_a_tool_failed(text: str, read: str) -> None:
    """The mark itself has no place in a prompt; a text that tells of the failure is left as it is."""
    failed, fine = (
        conversation(USER, assistant(use("c")), user(result("c", content=text, is_error=mark)))[-1]
        for mark in (True, False)
    )
    assert failed.is_error and failed.to_chat()["content"] == read
    assert fine.to_chat()["content"] == text


def test_wishes_and_labels_are_accepted() -> None:
    parse(temperature=1, top_p=0.9, top_k=5, metadata={"user_id": '{"session_id":"x"}'}, service_tier="auto")
    parse(stop_sequences=[], tools=None, system=None, stream=None, service_tier="standard_only", speed="standard")
    parse(output_config={"effort": "high"}, mcp_servers=[], diagnostics={"previous_message_id": None})
    for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        parse(thinking=thinking)
    for edits in ([], [{"type": "clear_thinking_20251015", "keep": "all"}]):
        parse(context_management={"edits": edits})
    tool = {"type": "custom", "strict": False, "defer_loading": False, "allowed_callers": ["direct"]}
    assert parse(tools=[TOOL | tool | {"eager_input_streaming": True, "input_examples": []}]).tools == (READ,)


def test_tool_choice() -> None:
    auto = {"type": "auto", "disable_parallel_tool_use": False}
    assert parse(tools=[TOOL], tool_choice=auto).tools == (READ,)
    assert parse(tools=[TOOL], tool_choice={"type": "none"}).tools == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": True}, "top_k"),
        ({"metadata": "me"}, "metadata"),
        ({"thinking": "no"}, "thinking"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": []}, "output_config"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ({"stop_sequences": ["x"]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"container": "c"}, "container"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"output_format": {}}, "output_format"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"n": 1}, "n"),
        ({"logprobs": None}, "logprobs"),
        ({"system": 3}, "system"),
        ({"system": [IMAGE]}, "system.0.type"),
        ({"system": ["s"]}, "system.0"),
        ({"system": [{"type": "text"}]}, "system.0.text"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [user({"text": "x"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": ["text"], "text": "x"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": "text", "text": 1})]}, "messages.0.content.0.text"),
        ({"messages": [user(text("x"), IMAGE)]}, "messages.0.content.1.type"),
        ({"messages": [user({"type": "document"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": "search_result"})]}, "messages.0.content.0.type"),
        ({"messages": [user(use("c"))]}, "messages.0.content.0.type"),
        ({"messages": [user(result("c", content=[IMAGE]))]}, "messages.0.content.0.content.0.type"),
        ({"messages": [user(result("c", content=3))]}, "messages.0.content.0.content"),
        ({"messages": [user(result("c", is_error="no"))]}, "messages.0.content.0.is_error"),
        ({"messages": [user(result(""))]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [user({"type": "tool_result"})]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [{"role": "system", "content": [use("c")]}, USER]}, "messages.0.content.0.type"),
        ({"messages": [assistant(result("c")), USER]}, "messages.0.content.0.type"),
        ({"messages": [assistant({"type": "server_tool_use"}), USER]}, "messages.0.content.0.type"),
        ({"messages": [assistant({"type": "thinking"}), USER]}, "messages.0.content.0.thinking"),
        ({"messages": [assistant(use("")), USER]}, "messages.0.content.0.id"),
        ({"messages": [assistant(use("c") | {"name": 3}), USER]}, "messages.0.content.0.name"),
        ({"messages": [assistant(use("c") | {"input": "{}"}), USER]}, "messages.0.content.0.input"),
        ({"messages": [assistant({"type": "tool_use", "id": "c", "name": "x"}), USER]}, "messages.0.content.0.input"),
        ({"messages": [USER, {"role": "assistant", "content": "Sure:"}]}, "messages"),
        ({"tools": {}}, "tools"),
        ({"tools": ["Bash"]}, "tools.0"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [TOOL | {"type": {}}]}, "tools.0.type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL | {"name": ""}]}, "tools.0.name"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [TOOL | {"description": 3}]}, "tools.0.description"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [TOOL | {"input_schema": []}]}, "tools.0.input_schema"),
        ({"tools": [TOOL | {"strict": True}]}, "tools.0.strict"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [TOOL | {"allowed_callers": ["code_execution_20260120"]}]}, "tools.0.allowed_callers"),
        ({"tools": [TOOL | {"input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tools": [TOOL | {"parameters": {}}]}, "tools.0.parameters"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "Bash"}}, "tool_choice.type"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    problem = refusal(**fields)
    assert (problem.status, problem.param) == (400, param)
    error = PROTOCOL.error(problem)
    assert error["type"] == "error" and set(error["error"]) == {"type", "message"}
    assert error["error"]["type"] == "invalid_request_error"
    name, _, reason = error["error"]["message"].partition(": ")
    assert name == param and reason


# ---------------------------------------------------------------- counting


def test_counting_takes_the_same_conversation_without_a_bound() -> None:
    body = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL], "thinking": {"type": "adaptive"}}
    counted = PROTOCOL.parse_count(orjson.dumps(body | {"tool_choice": {"type": "auto"}, "cache_control": CACHE}))
    asked = PROTOCOL.parse(orjson.dumps(body | {"max_tokens": 5}))
    assert (counted.messages, counted.tools, counted.max_tokens) == (asked.messages, asked.tools, None)
    assert PROTOCOL.count(17) == {"input_tokens": 17}


@pytest.mark.parametrize("name", ["max_tokens", "stream", "temperature", "stop_sequences", "metadata", "unknown"])
def test_counting_refuses_what_is_for_answers_alone(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        PROTOCOL.parse_count(orjson.dumps({"model": "m", "messages": [USER], name: 1}))
    assert caught.value.param == name


# ---------------------------------------------------------------- malformed bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
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
    for read in (PROTOCOL.parse, PROTOCOL.parse_count):
        with pytest.raises(Refusal) as caught:
            read(body)
        assert caught.value.status == 400


@pytest.mark.parametrize("depth", [254, 400, 900])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"a": nested}
    for fields in (
        {"messages": [assistant(use("c") | {"input": nested}), USER]},
        {"tools": [TOOL | {"input_schema": nested}]},
    ):
        body = json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields).encode()
        with pytest.raises(Refusal, match=r"nested too deeply|could not parse"):
            PROTOCOL.parse(body)


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    half = b'"a\\ud83d b \\ud83d\\ude00"'
    body = b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c",'
    body += b'"name":"n","input":{"x":%s}}]},{"role":"user","content":%s}]}' % (half, half)
    made = PROTOCOL.parse(body).messages
    assert made[0].tool_calls[0].arguments == '{"x":"a� b 😀"}'
    assert made[1].text == "a� b 😀"


FULL: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "system": [text("s")],
    "messages": [
        {"role": "user", "content": "x"},
        {"role": "system", "content": [text("y")]},
        assistant({"type": "thinking", "thinking": "t", "signature": "s"}, text("a"), use("c", k=[1, {"b": 2}])),
        user(result("c", content=[text("r")], is_error=True), text("b")),
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
    "temperature": 1.0,
    "stop_sequences": [],
    "context_management": {"edits": []},
    "stream": False,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below: list[tuple[Any, ...]] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        below += places(item, (*path, key))
    return [path, *below]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "input", "role", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(place=st.sampled_from(places(FULL)), junk=JUNK, counting=st.booleans())
def test_junk_at_any_place_is_read_or_refused(place: tuple[Any, ...], junk: Any, counting: bool) -> None:
    body = json.loads(json.dumps({"root": FULL}))
    *way, last = ("root", *place)
    inside = body
    for key in way:
        inside = inside[key]
    inside[last] = junk
    if counting and isinstance(body["root"], dict):
        for name in ("max_tokens", "metadata", "temperature", "stop_sequences", "stream"):
            body["root"].pop(name, None)
    raw = json.dumps(body["root"], ensure_ascii=True).encode()
    try:
        request = (PROTOCOL.parse_count if counting else PROTOCOL.parse)(raw)
    except Refusal as problem:
        assert problem.status == 400 and PROTOCOL.error(problem)["error"]["message"]
    else:
        orjson.dumps([message.to_chat() for message in request.messages])
        assert request.tools_key is not None and request.tool_names is not None
