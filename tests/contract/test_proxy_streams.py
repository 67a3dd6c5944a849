"""Answers that are streamed while they are sampled: over a real loopback socket, by the official clients and raw."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from proxy_pieces import MODEL, TERMINAL, Part, Served, call_text, engine_failure, make_checkpoint, served

from engine.core.records import Termination

FUNCTION: dict[str, Any] = TERMINAL["function"]  # type: ignore[assignment]
USER: Any = {"role": "user", "content": "go"}
CALL = call_text("ls")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@dataclass(frozen=True)
class Spoken:
    """A protocol: its path, a streamed request, what ends its streams, what stands in an error within one."""

    path: str
    body: dict[str, Any]
    end: str
    error: str


SPOKEN = {
    "openai_chat": Spoken(
        "/v1/chat/completions", {"messages": [USER], "tools": [TERMINAL]}, "data: [DONE]", '"type":"server_error"'
    ),
    "openai_responses": Spoken(
        "/v1/responses",
        {"input": [USER], "tools": [{"type": "function", "strict": None} | FUNCTION]},
        "event: response.completed",
        "event: response.failed",
    ),
    "anthropic": Spoken(
        "/v1/messages?beta=true",
        {
            "messages": [USER],
            "max_tokens": 200,
            "tools": [{"name": "terminal", "input_schema": FUNCTION["parameters"]}],
        },
        "event: message_stop",
        "event: error",
    ),
}
NAMES = sorted(SPOKEN)
FIRST = '"Q"'
"""The first token of the texts below, as every protocol writes it."""


@contextlib.asynccontextmanager
async def streamed(s: Served, name: str, **more: Any) -> AsyncIterator[httpx.Response]:
    spoken = SPOKEN[name]
    headers = {"authorization": f"Bearer {s.key}", "anthropic-version": "2023-06-01"}
    body = {"model": MODEL, "stream": True} | spoken.body | more
    async with (
        httpx.AsyncClient(base_url=s.session.endpoint.base_url, headers=headers, timeout=20) as client,
        client.stream("POST", spoken.path, json=body) as response,
    ):
        yield response


async def read_until(lines: AsyncIterator[str], wanted: str) -> str:
    """All lines up to the one that holds `wanted`."""
    read = ""
    async with asyncio.timeout(20):
        async for line in lines:
            read += line + "\n"
            if wanted in line:
                return read
    raise AssertionError(f"{wanted!r} did not come: {read}")


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------- one message, however it comes

TEXTS = {
    "text": "Hello é 😀, all is well.",
    "empty": "",
    "reasoning": "<think>\nI wonder.\n</think>\n\nYes.",
    "call": f"Look.\n{CALL}",
    "calls": f"<think>\nhm\n</think>\n\n{CALL}\n{call_text('b')}",
    "malformed": '<tool_call>\n{"name": "terminal", "arguments": {"comm\n</tool_call>',
    "control": f"a<|im_start|>b\n{CALL}<|endoftext|>\n{CALL}<|im_start|>",
    "drafts": f"<think>\nhm {CALL}\n</think>\n\nno.",
}


async def message(s: Served, name: str, stream: bool) -> Any:
    """What the official client makes of the answer."""
    body: Any = {"model": MODEL} | SPOKEN[name].body
    base = s.session.endpoint.base_url
    if name == "anthropic":
        async with anthropic.AsyncAnthropic(base_url=base, auth_token=s.key, max_retries=0) as claude:
            if not stream:
                made = await claude.beta.messages.create(**body)
            else:
                async with claude.beta.messages.stream(**body) as events:
                    made = await events.get_final_message()
            blocks = [
                block.model_dump(exclude={"id", "parsed_output", "citations", "caller"}) for block in made.content
            ]
            return blocks, made.stop_reason, made.usage.output_tokens, made.usage.input_tokens
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=s.key, max_retries=0) as client:
        if name == "openai_responses":
            if not stream:
                answer = await client.responses.create(**body)
            else:
                async with client.responses.stream(**body) as events:
                    answer = await events.get_final_response()
            kept = {"type", "content", "name", "arguments", "status", "role"}
            items = [item.model_dump(exclude_none=True) for item in answer.output]
            for item in items:
                for part in item.get("content") or ():
                    part.pop("parsed", None)
                    part["logprobs"] = []
            assert answer.usage is not None
            return [{key: item[key] for key in kept & item.keys()} for item in items], answer.usage.output_tokens
        if not stream:
            choice = (await client.chat.completions.create(**body)).choices[0]
        else:
            async with client.chat.completions.stream(**body) as events:
                choice = (await events.get_final_completion()).choices[0]
        reply = choice.message
        calls = [(call.function.name, call.function.arguments) for call in reply.tool_calls or ()]
        return reply.content or "", getattr(reply, "reasoning_content", None), calls, choice.finish_reason


@pytest.mark.parametrize("hold_back", ["none", "tool_call"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_live_and_unstreamed_are_the_same_message(checkpoint: Path, name: str, text: str, hold_back: str) -> None:
    halves = [Part(text[: len(text) // 2]), text[len(text) // 2 :]]
    slow = asyncio.Event()
    script = [*halves, halves[0], slow, halves[1]]
    async with served(checkpoint, list(script), client={"hold_back": hold_back}) as s:
        whole = await message(s, name, False)
        asyncio.get_running_loop().call_later(0.1, slow.set)
        assert await message(s, name, True) == whole
        exchanges, segments, _ = await s.session.close()
    assert len(segments) == 2 and [exchange.error for exchange in exchanges] == ["", ""]
    assert exchanges[0].sampled_ids.tolist() == exchanges[1].sampled_ids.tolist() == s.engine.sampled[1]


# ---------------------------------------------------------------- what comes when


@pytest.mark.parametrize("name", NAMES)
async def test_text_comes_while_the_turn_is_sampled(checkpoint: Path, name: str) -> None:
    gate = asyncio.Event()
    async with served(checkpoint, [Part("Q and "), gate, "A"], client={"hold_back": "tool_call"}) as s:
        async with streamed(s, name) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            early = await read_until(lines, FIRST)
            assert SPOKEN[name].end not in early and not gate.is_set()
            gate.set()
            await read_until(lines, SPOKEN[name].end)
        exchanges, _, _ = await s.session.close()
    assert json.loads(exchanges[0].response) and not exchanges[0].error


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize(("hold_back", "early"), [("none", True), ("tool_call", False)])
async def test_a_closed_call_comes_early_only_if_nothing_is_held_back(
    checkpoint: Path, name: str, hold_back: str, early: bool
) -> None:
    gate = asyncio.Event()
    script = [Part(f"Q\n{CALL}"), gate, "\n" + call_text("b")]
    async with served(checkpoint, script, client={"hold_back": hold_back}) as s, streamed(s, name) as response:
        lines = response.aiter_lines()
        if early:
            assert '\\"ls\\"' in await read_until(lines, '\\"ls\\"')
        else:
            assert "terminal" not in await read_until(lines, FIRST)
        assert not gate.is_set()
        gate.set()
        assert "terminal" in await read_until(lines, SPOKEN[name].end)


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_that_is_held_back_comes_whole_or_not_at_all(checkpoint: Path, name: str) -> None:
    async with served(checkpoint, [Part("Q and "), engine_failure(), "fine"], client={"hold_back": "turn"}) as s:
        async with streamed(s, name) as response:
            assert response.status_code == 500
        assert s.engine.calls[0].sink is None, "nobody listens, so the engine need not stream"


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("name", NAMES)
async def test_a_failure_before_the_first_word_is_a_status(checkpoint: Path, name: str) -> None:
    script = [Part("  "), engine_failure(), Part("<tool_call>"), engine_failure()]
    async with served(checkpoint, script, client={"hold_back": "none"}) as s:
        for _ in range(2):
            async with streamed(s, name) as response:
                assert response.status_code == 500
                assert "worker died" in (await response.aread()).decode()


@pytest.mark.parametrize("name", NAMES)
async def test_a_failure_after_it_breaks_the_stream_off_and_the_retry_replaces_it(checkpoint: Path, name: str) -> None:
    async with served(checkpoint, [Part("Q and "), asyncio.Event(), "x"], client={"hold_back": "none"}) as s:
        gate: Any = s.engine.script[1]
        s.engine.script[2] = engine_failure()
        read = ""
        with pytest.raises(httpx.RemoteProtocolError):
            async with streamed(s, name) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    read += line + "\n"
                    if FIRST in line:
                        gate.set()
        assert SPOKEN[name].error in read and "worker died" in read and SPOKEN[name].end not in read
        assert s.session.turns.termination is Termination.ENGINE_ERROR
        s.engine.script = ["Q again"]
        async with streamed(s, name) as response:
            await read_until(response.aiter_lines(), SPOKEN[name].end)
        exchanges, segments, termination = await s.session.close()
    assert termination is None and len(segments) == 1
    assert [(exchange.kind, bool(exchange.error)) for exchange in exchanges] == [("discarded", True), ("policy", False)]
    assert exchanges[0].response == ""


async def test_the_official_clients_take_a_broken_stream_for_a_failure(checkpoint: Path) -> None:
    async def broken(s: Served, name: str) -> None:
        gate = asyncio.Event()
        s.engine.script = [Part("Q and "), gate, engine_failure()]
        asyncio.get_running_loop().call_later(0.1, gate.set)
        await message(s, name, True)

    async with served(checkpoint, [], client={"hold_back": "none"}) as s:
        with pytest.raises(anthropic.APIError):
            await broken(s, "anthropic")
        with pytest.raises(openai.APIError):
            await broken(s, "openai_chat")
        with pytest.raises((openai.APIError, httpx.RemoteProtocolError, RuntimeError)):
            await broken(s, "openai_responses")


@pytest.mark.parametrize("name", NAMES)
async def test_a_client_that_leaves_amid_a_stream_cancels_its_turn(checkpoint: Path, name: str) -> None:
    async with served(checkpoint, [Part("Q and "), asyncio.Event()], client={"hold_back": "none"}) as s:
        async with streamed(s, name) as response:
            await read_until(response.aiter_lines(), FIRST)
        await until(lambda: not s.session._work and s.session._calls[0].error)
        s.engine.script = ["Q again"]
        async with streamed(s, name) as response:
            await read_until(response.aiter_lines(), SPOKEN[name].end)
        exchanges, segments, _ = await s.session.close()
    assert [(e.kind, e.error) for e in exchanges] == [
        ("discarded", "the client went away before the answer was there"),
        ("policy", ""),
    ]
    assert [segment.exchanges for segment in segments] == [("x1",)]


async def test_the_end_of_the_trial_breaks_a_stream_off(checkpoint: Path) -> None:
    script = [Part("Q and "), asyncio.Event()]
    async with served(checkpoint, script, client={"hold_back": "none"}) as s, streamed(s, "anthropic") as response:
        lines = response.aiter_lines()
        await read_until(lines, FIRST)
        async with asyncio.timeout(10):
            exchanges, segments, _ = await s.session.close()
        rest = ""
        with contextlib.suppress(httpx.TransportError):
            rest = "".join([line async for line in lines])
        assert "message_stop" not in rest
    assert [(e.kind, e.error) for e in exchanges] == [("discarded", "the trial ended before the answer was there")]
    assert segments == ()


async def test_a_fault_amid_a_stream_breaks_it_off_and_ends_the_run(checkpoint: Path) -> None:
    gate = asyncio.Event()
    async with served(checkpoint, [Part("Q and "), gate, ZeroDivisionError("bug")], client={"hold_back": "none"}) as s:
        with pytest.raises(httpx.RemoteProtocolError):
            async with streamed(s, "openai_chat") as response:
                lines = response.aiter_lines()
                await read_until(lines, FIRST)
                gate.set()
                assert "[DONE]" not in "".join([line async for line in lines])
        with pytest.raises(ZeroDivisionError):
            await s.session.close()


async def test_a_conversation_over_live_streams_is_one_segment(checkpoint: Path) -> None:
    """Also with the counts that only the end of a stream knows."""
    script = [f"Look.\n{CALL}", f"<think>\nhm\n</think>\n\n{CALL}", "done"]
    async with served(checkpoint, list(script), client={"hold_back": "none"}) as s:
        base = s.session.endpoint.base_url
        messages: list[Any] = [USER]
        async with anthropic.AsyncAnthropic(base_url=base, auth_token=s.key, max_retries=0) as claude:
            for _ in range(3):
                body: Any = {"model": MODEL} | SPOKEN["anthropic"].body | {"messages": messages}
                async with claude.messages.stream(**body) as events:
                    made = await events.get_final_message()
                content = [block.model_dump(exclude={"parsed_output", "caller"}) for block in made.content]
                uses = [block for block in content if block["type"] == "tool_use"]
                results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "r"} for use in uses]
                messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
        exchanges, segments, _ = await s.session.close()
    (segment,) = segments
    assert segment.token_ids[segment.target].tolist() == [token for ids in s.engine.sampled for token in ids]
    assert made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) == exchanges[-1].prompt_length


@pytest.mark.parametrize("name", NAMES)
async def test_who_listens_hears_each_call_once_as_it_is_kept(checkpoint: Path, name: str) -> None:
    heard: list[Any] = []
    async with served(checkpoint, [f"Look.\n{CALL}", f"Look.\n{CALL}", engine_failure()]) as s:
        s.session.heard = heard.append
        for stream in (False, True):
            await message(s, name, stream)
            assert len(heard) == stream + 1, "while the trial goes on"
        async with streamed(s, name) as response:
            assert response.status_code == 500
        exchanges, _, _ = await s.session.close()
    told = [(one.id, one.response, one.error, one.sampled_ids.tolist(), one.finish_reason) for one in heard]
    assert told == [(one.id, one.response, one.error, one.sampled_ids.tolist(), one.finish_reason) for one in exchanges]
    assert [bool(one.error) for one in heard] == [False, False, True]
