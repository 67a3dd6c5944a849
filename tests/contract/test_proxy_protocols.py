"""All three protocols over a real loopback socket, judged by the official clients, and their errors by raw HTTP."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from harness_pieces import options
from proxy_pieces import MODEL, TERMINAL, Served, call_text, make_checkpoint, served

from engine.core.records import Termination
from engine.wire.recorded import answer_made, messages_sent, tools_offered

FUNCTION: dict[str, Any] = TERMINAL["function"]  # type: ignore[assignment]
ANTHROPIC_TOOL: Any = {
    "name": "terminal",
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
RESPONSES_TOOL: Any = {"type": "function", "strict": None} | FUNCTION
USER: Any = {"role": "user", "content": "go"}
SCRIPT = ["Look.\n" + call_text("ls"), call_text("a") + "\n" + call_text("b"), "done"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@contextlib.asynccontextmanager
async def http_client(s: Served, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    base = s.session.endpoint.base_url
    async with httpx.AsyncClient(base_url=base, headers={"authorization": f"Bearer {s.key}"} | headers) as client:
        yield client


@contextlib.asynccontextmanager
async def claude(s: Served, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    options = {"max_retries": 0, "auth_token": s.key} | options
    async with anthropic.AsyncAnthropic(base_url=s.session.endpoint.base_url, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def codex(s: Served, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=s.url, api_key=s.key, **({"max_retries": 0} | options)) as client:
        yield client


Play = Callable[[Served, bool], Awaitable[None]]


async def play_anthropic(s: Served, stream: bool) -> None:
    """Strings become blocks, results come in completion order."""
    messages: list[Any] = [USER]
    async with claude(s) as client:
        while True:
            options: Any = {"model": MODEL, "max_tokens": 50, "messages": messages, "tools": [ANTHROPIC_TOOL]}
            if stream:
                async with client.beta.messages.stream(**options) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.beta.messages.create(**options)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            uses = [block for block in content if block["type"] == "tool_use"]
            assert reply.stop_reason == ("tool_use" if uses else "end_turn")
            if not uses:
                return
            results = [{"type": "tool_result", "tool_use_id": use["id"], "content": f"{use['input']}"} for use in uses]
            messages[0] = {"role": "user", "content": [{"type": "text", "text": "go"}]}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results[::-1]}]


async def play_responses(s: Served, stream: bool) -> None:
    items: list[Any] = [USER]
    async with codex(s) as client:
        while True:
            options: Any = {"model": MODEL, "input": items, "tools": [RESPONSES_TOOL], "store": False}
            if stream:
                async with client.responses.stream(**options) as events:
                    reply = await events.get_final_response()
            else:
                reply = await client.responses.create(**options)
            output = [item.model_dump(exclude_none=True) for item in reply.output]
            calls = [item for item in output if item["type"] == "function_call"]
            for item in output:
                item.pop("parsed_arguments", None)
            if not calls:
                return
            results = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": call["arguments"]}
                for call in calls
            ]
            items += output + results[::-1]


async def play_chat(s: Served, stream: bool) -> None:
    messages: list[Any] = [USER]
    async with codex(s) as client:
        while True:
            options: Any = {"model": MODEL, "messages": messages, "tools": [TERMINAL]}
            if stream:
                async with client.chat.completions.stream(**options) as events:
                    reply = (await events.get_final_completion()).choices[0].message
            else:
                reply = (await client.chat.completions.create(**options)).choices[0].message
            if not reply.tool_calls:
                return
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": call.function.arguments}
                for call in reply.tool_calls
            ]
            messages += [reply.model_dump(exclude_none=True, exclude={"parsed"}), *results[::-1]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "play"),
    [("anthropic", play_anthropic), ("openai_responses", play_responses), ("openai_chat", play_chat)],
)
async def test_three_turns_with_parallel_calls_are_one_segment(
    checkpoint: Path, name: str, play: Play, stream: bool
) -> None:
    async with served(checkpoint, list(SCRIPT)) as s:
        await play(s, stream)
        exchanges, segments, termination = await s.session.close()
    assert termination is None
    (segment,) = segments
    assert segment.token_ids.tolist() == s.engine.calls[-1].prompt + s.engine.sampled[-1]
    targets = segment.token_ids[segment.target].tolist()
    assert targets == [token for ids in s.engine.sampled for token in ids]
    assert [(exchange.protocol, exchange.kind) for exchange in exchanges] == [(name, "policy")] * 3
    assert [len(answer_made(name, exchange.response).tool_calls) for exchange in exchanges] == [1, 2, 0]
    assert [len(messages_sent(name, exchange.request)) for exchange in exchanges] == [1, 3, 6]
    assert tools_offered(name, exchanges[0].request) == {"terminal"}


async def test_claude_codes_billing_header_may_change_with_each_request(checkpoint: Path) -> None:
    """As configured: one segment, and the prompt that the engine has cached."""
    client = {"volatile": options("harness/claude_code.yaml")["client"].volatile}
    async with served(checkpoint, list(SCRIPT), client=client) as s, claude(s) as http:
        messages: list[Any] = [USER]
        for number in range(3):
            header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch=0{number};"
            system: Any = [{"type": "text", "text": text} for text in (header, "You mend code.")]
            asked: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": messages, "tools": [ANTHROPIC_TOOL]}
            reply = await http.beta.messages.create(system=system, **asked)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "r"}
                for block in content
                if block["type"] == "tool_use"
            ]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        _, segments, _ = await s.session.close()
    (segment,) = segments
    assert segment.token_ids.tolist() == s.engine.calls[-1].prompt + s.engine.sampled[-1]


async def test_opencodes_day_may_end_within_a_trial(checkpoint: Path) -> None:
    """It writes its system message anew for each request, and today's date into it."""
    client = {"volatile": options("harness/opencode.yaml")["client"].volatile}
    async with served(checkpoint, list(SCRIPT), client=client) as s, codex(s) as http:
        messages: list[Any] = [USER]
        for day in ("Mon Nov 30", "Tue Dec 01", "Tue Dec 01"):
            said = f"You mend code.\n<env>\n  Platform: linux\n  Today's date: {day} 2026\n</env>\nBe brief."
            asked: Any = [{"role": "system", "content": said}, *messages]
            answer = await http.chat.completions.create(model=MODEL, messages=asked, tools=[TERMINAL])  # type: ignore[list-item]
            reply = answer.choices[0].message
            results = [{"role": "tool", "tool_call_id": call.id, "content": "r"} for call in reply.tool_calls or ()]
            messages += [reply.model_dump(exclude_none=True), *results]
        _, segments, _ = await s.session.close()
    (segment,) = segments
    assert segment.token_ids.tolist() == s.engine.calls[-1].prompt + s.engine.sampled[-1]


# ---------------------------------------------------------------- who may call, and where


@dataclass(frozen=True)
class Form:
    """A protocol's path, a body for it, and the form of its errors."""

    path: str
    body: dict[str, Any]
    keys: tuple[str, ...]
    headers: dict[str, str]


MESSAGES = {"model": MODEL, "messages": [USER]}
OPENAI = ("code", "message", "param", "type")
FORMS = [
    Form("/v1/chat/completions", MESSAGES, OPENAI, {}),
    Form("/v1/responses", {"model": MODEL, "input": "go"}, OPENAI, {}),
    Form(
        "/v1/messages?beta=true",
        MESSAGES | {"max_tokens": 9},
        ("message", "type"),
        {"anthropic-version": "2023-06-01"},
    ),
    Form("/v1/messages/count_tokens", MESSAGES, ("message", "type"), {"anthropic-version": "2023-06-01"}),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
async def test_errors_have_the_protocols_own_form(checkpoint: Path, form: Form) -> None:
    async with served(checkpoint, []) as s, http_client(s, **form.headers) as http:
        crossed = f"http://127.0.0.1:{s.url.split(':')[2].split('/')[0]}/t/other{form.path}"
        answers = {
            401: await http.post(form.path, json=form.body, headers={"authorization": "Bearer wrong"}),
            404: await http.post(crossed, json=form.body),
            405: await http.put(form.path, json=form.body),
            413: await http.post(form.path, content=b" " * (2 << 20)),
            400: await http.post(form.path, content=b"\xff{"),
        }
        unknown = await http.post(form.path.partition("?")[0] + "/x", json=form.body)
        model = await http.post(form.path, json=form.body | {"model": "gpt"})
        for status, answer in [*answers.items(), (404, unknown), (404, model)]:
            assert answer.status_code == status
            assert tuple(sorted(answer.json()["error"])) == form.keys
        types = {status: answer.json()["error"]["type"] for status, answer in answers.items()}
        if form.headers:
            assert types == {
                401: "authentication_error",
                404: "not_found_error",
                405: "invalid_request_error",
                413: "request_too_large",
                400: "invalid_request_error",
            }
        assert s.engine.calls == []


async def test_either_key_header_opens_the_door(checkpoint: Path) -> None:
    form = FORMS[2]
    async with served(checkpoint, []) as s, http_client(s, authorization="", **form.headers) as http:
        for headers, status in (
            ({"x-api-key": s.key}, 200),
            ({"x-api-key": s.key, "authorization": "Bearer other"}, 200),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "", "authorization": f"Basic {s.key}"}, 401),
            ({}, 401),
        ):
            assert (await http.post(form.path, json=form.body, headers=headers)).status_code == status, headers


async def test_the_list_of_models_is_in_the_clients_protocol(checkpoint: Path) -> None:
    async with served(checkpoint, []) as s, claude(s, api_key=s.key, auth_token=None) as client, codex(s) as other:
        page = await client.models.list()
        assert [(model.id, model.type) for model in page.data] == [(MODEL, "model")] and not page.has_more
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("claude-9")
        assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        assert [model.id async for model in other.models.list()] == [MODEL]


async def test_the_probe_for_a_server(checkpoint: Path) -> None:
    async with served(checkpoint, []) as s, http_client(s, authorization="") as http:
        probe = await http.head("/api/hello")
        assert probe.status_code == 200 and probe.content == b""
        assert (await http.head("/v1/api/hello")).status_code == 404
        assert (await s.session.close())[0] == ()


# ---------------------------------------------------------------- counts and limits


async def test_counted_tokens_are_those_of_the_call(checkpoint: Path) -> None:
    """Also where the history holds a sampled turn, and without leaving an exchange."""
    async with served(checkpoint, ["hello there"]) as s, claude(s) as client:
        asked: Any = {"model": MODEL, "messages": [USER], "tools": [ANTHROPIC_TOOL], "system": "Be brief."}
        for _ in range(2):
            counted = (await client.messages.count_tokens(**asked)).input_tokens
            reply = await client.messages.create(max_tokens=20, **asked)
            assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) == counted
            answer = {"role": "assistant", "content": reply.content}
            asked["messages"] = [*asked["messages"], answer, {"role": "user", "content": "more"}]
        exchanges, segments, _ = await s.session.close()
        assert len(exchanges) == 2 and len(segments) == 1


LONG: Any = {"role": "user", "content": "word " * 2000}


async def test_a_full_window_in_each_protocols_words(checkpoint: Path) -> None:
    async with (
        served(checkpoint, [], max_prompt_tokens=500) as s,
        claude(s, max_retries=3) as client,
        codex(s) as other,
    ):
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 500 maximum"):
                await client.messages.create(model=MODEL, max_tokens=9, messages=[LONG], stream=stream)
        with pytest.raises(openai.BadRequestError) as caught:
            await other.responses.create(model=MODEL, input=[LONG])
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        stream = await other.responses.create(model=MODEL, input=[LONG], stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "context_length_exceeded"  # type: ignore[union-attr]
        exchanges, segments, termination = await s.session.close()
        assert termination is Termination.CONTEXT_OVERFLOW and segments == ()
        assert len(exchanges) == 4 and all(e.error and e.response == "" for e in exchanges)
        assert json.loads(exchanges[-1].request)["stream"] is True
