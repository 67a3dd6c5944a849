"""The proxy over a real loopback socket, judged by the official `openai` client and by raw HTTP."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from proxy_pieces import (
    MODEL,
    TERMINAL,
    Served,
    call_text,
    engine_failure,
    make_checkpoint,
    make_harness,
    make_trial,
    routing,
    served,
)

from engine.core.contracts import Proxy, Session
from engine.core.errors import AlignmentError, ConfigError, RunError
from engine.core.records import Termination
from engine.proxy.app import LlmProxy

START: list[Any] = [{"role": "system", "content": "You are x."}, {"role": "user", "content": "go"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@contextlib.asynccontextmanager
async def openai_client(s: Served, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    options = {"max_retries": 0, "api_key": s.key} | options
    async with openai.AsyncOpenAI(base_url=s.url, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def http_client(s: Served, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {s.key}"}
    async with httpx.AsyncClient(base_url=s.url, headers=headers, timeout=20, **options) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, messages: list[Any], **fields: Any) -> Any:
    return await client.chat.completions.create(model=MODEL, messages=messages, tools=[TERMINAL], **fields)


def test_it_is_a_proxy() -> None:
    for protocol, members in ((Proxy, ("start", "open", "stop")), (Session, ("serve", "close"))):
        assert all(hasattr(protocol, member) for member in members)
    assert all(hasattr(LlmProxy, member) for member in ("start", "open", "stop"))


async def test_five_turns_with_tools_are_one_exact_segment(checkpoint: Path) -> None:
    script = ["Look.\n" + call_text("ls"), call_text("a") + "\n" + call_text("b"), call_text("t"), "done", "truly"]
    async with served(checkpoint, list(script)) as s, openai_client(s) as client:
        messages = list(START)
        for turn in range(5):
            reply = (await ask(client, messages)).choices[0]
            messages.append(reply.message.model_dump(exclude_none=True))
            for call in reply.message.tool_calls or []:
                content = [{"type": "text", "text": f"out {turn}"}]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if not reply.message.tool_calls:
                messages.append({"role": "user", "content": "sure?"})
        exchanges, segments, termination = await s.session.close()
        assert termination is None
        assert [exchange.kind for exchange in exchanges] == ["policy"] * 5
        (segment,) = segments
        stream = s.engine.calls[-1].prompt + s.engine.sampled[-1]
        assert segment.token_ids.tolist() == stream
        targets = segment.token_ids[segment.target].tolist()
        assert targets == [token for ids in s.engine.sampled for token in ids]
        np.testing.assert_array_equal(segment.routed_experts, routing(stream, 0))
        rebuilt = [np.concatenate([exchange.prompt_ids, exchange.sampled_ids]) for exchange in exchanges]
        assert np.concatenate(rebuilt).tolist() == stream
        assert [exchange.parent for exchange in exchanges] == [None, "x0", "x1", "x2", "x3"]
        assert json.loads(exchanges[0].request)["messages"] == START
        assert json.loads(exchanges[0].response)["choices"][0]["finish_reason"] == "tool_calls"


async def test_openhands_rewrites_do_not_split(checkpoint: Path) -> None:
    """Arguments re-serialised, reasoning dropped, null content, a malformed call renamed."""
    script = [call_text("ls"), '<tool_call>\n{"name": "terminal", "arguments": {"comm\n</tool_call>', "done"]
    async with served(checkpoint, list(script)) as s, openai_client(s) as client:
        one = (await ask(client, START)).choices[0].message.tool_calls[0]
        rewritten = {
            "id": one.id,
            "type": "function",
            "function": {"name": "terminal", "arguments": '{"command":"ls"}'},
        }
        messages = [
            *START,
            {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [rewritten]},
            {"role": "tool", "tool_call_id": one.id, "name": "terminal", "content": "x.py"},
        ]
        two = (await ask(client, messages)).choices[0].message.tool_calls[0]
        assert (two.function.name, two.function.arguments) == ("terminal", '{"comm')
        renamed = {"name": "_openhands_malformed_tool_call", "arguments": '{"raw": "..."}'}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": two.id, "type": "function", "function": renamed}]},
            {"role": "tool", "tool_call_id": two.id, "content": "Error: bad JSON"},
        ]
        assert (await ask(client, messages)).choices[0].message.content == "done"
        _, segments, _ = await s.session.close()
        assert [segment.exchanges for segment in segments] == [("x0", "x1", "x2")]


@pytest.mark.parametrize(
    "text",
    ["hello", "", "Look.\n" + call_text("ls"), call_text("é") + "\n" + call_text("b"), "<think>\nhm\n</think>\n\nok"],
)
async def test_streamed_and_unstreamed_are_the_same_message(checkpoint: Path, text: str) -> None:
    async with served(checkpoint, [text, text]) as s, openai_client(s) as client:
        whole = await ask(client, START)
        async with client.chat.completions.stream(
            model=MODEL, messages=START, tools=[TERMINAL], stream_options={"include_usage": True}
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
        first, second = whole.choices[0], streamed.choices[0]
        assert first.finish_reason == second.finish_reason
        assert (first.message.content or "") == (second.message.content or "")
        assert getattr(first.message, "reasoning_content", None) == getattr(second.message, "reasoning_content", None)
        calls = [
            [(c.function.name, c.function.arguments) for c in m.tool_calls or []]
            for m in (first.message, second.message)
        ]
        assert calls[0] == calls[1]
        assert whole.usage == streamed.usage
        _, segments, _ = await s.session.close()
        assert len(segments) == 2, "a repeated request whose answer arrived is a resample"


async def test_logprobs_are_the_engines(checkpoint: Path) -> None:
    async with served(checkpoint, ["ok"]) as s, openai_client(s) as client:
        content = (await ask(client, START, logprobs=True)).choices[0].logprobs.content
        exchanges, _, _ = await s.session.close()
        assert [item.logprob for item in content] == pytest.approx(exchanges[0].logprobs.tolist())
        assert "".join(item.token for item in content).startswith("ok")


# ---------------------------------------------------------------- who may call


async def test_keys_paths_and_trials_are_kept_apart(checkpoint: Path) -> None:
    async with served(checkpoint, ["mine"]) as s:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        other = s.proxy.open(make_trial(checkpoint, sample=1), s_harness(), port)
        await other.serve(listener)
        async with openai_client(s, api_key=other.endpoint.api_key) as client:
            with pytest.raises(openai.AuthenticationError):
                await ask(client, START)
        async with openai_client(s, api_key="clé") as client:
            with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
                await ask(client, START)
        crossed = f"http://127.0.0.1:{port}/t/{s.session.path_name}/v1"
        async with openai.AsyncOpenAI(base_url=crossed, api_key=s.key, max_retries=0) as client:
            with pytest.raises(openai.NotFoundError):
                await ask(client, START)
        async with openai.AsyncOpenAI(base_url=f"{other.endpoint.base_url}/v1", api_key=s.key, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await ask(client, START)
        assert s.engine.calls == []
        assert (await other.close())[0] == () and (await s.session.close())[0] == ()


def s_harness() -> Any:
    return make_harness(5)


async def test_other_paths_and_models(checkpoint: Path) -> None:
    async with served(checkpoint, []) as s, http_client(s) as http, openai_client(s) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("gpt-9")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="gpt-9", messages=START)
        for method, path in (
            ("GET", "/nothing"),
            ("POST", "/embeddings"),
            ("GET", "/../../etc"),
            ("POST", "/completions"),
        ):
            response = await http.request(method, path)
            assert response.status_code == 404 and response.json()["error"]["type"] == "invalid_request_error"
        wrong_method = await http.get("/chat/completions")
        assert wrong_method.status_code == 405 and wrong_method.json()["error"]["message"]
        assert (await http.get("/models", headers={"authorization": ""})).status_code == 401


# ---------------------------------------------------------------- errors as the protocol says them


async def test_limits_are_refused_without_a_retry(checkpoint: Path) -> None:
    async with served(checkpoint, ["one"], max_turns=1) as s, openai_client(s, max_retries=3) as client:
        await ask(client, START)
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, START)
        assert caught.value.code == "max_turns_reached"
        exchanges, segments, termination = await s.session.close()
        assert termination is Termination.MAX_TURNS
        assert [(e.kind, bool(e.error)) for e in exchanges] == [("policy", False), ("discarded", True)]
        assert len(segments) == 1


async def test_context_overflow_is_the_protocols_own_error(checkpoint: Path) -> None:
    async with served(checkpoint, [], max_prompt_tokens=500) as s, openai_client(s, max_retries=3) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, [{"role": "user", "content": "word " * 2000}])
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"
        exchanges, segments, termination = await s.session.close()
        assert len(exchanges) == 1 and segments == () and termination is Termination.CONTEXT_OVERFLOW
        assert exchanges[0].prompt_length > 500 and exchanges[0].response == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_failure_is_a_5xx_before_any_byte(checkpoint: Path, stream: bool) -> None:
    async with served(checkpoint, [engine_failure(), "fine"]) as s, openai_client(s) as client:
        with pytest.raises(openai.InternalServerError, match="worker died"):
            await ask(client, START, stream=stream)
        assert s.session.turns.termination is Termination.ENGINE_ERROR
        await ask(client, START)
        exchanges, segments, termination = await s.session.close()
        assert termination is None and len(segments) == 1
        assert [(e.kind, e.error) for e in exchanges] == [
            ("discarded", "The inference engine failed: worker died"),
            ("policy", ""),
        ]


async def test_a_fault_of_our_own_is_a_500_and_raised_at_the_end(checkpoint: Path) -> None:
    async with served(checkpoint, [ZeroDivisionError("bug")]) as s, openai_client(s) as client:
        with pytest.raises(openai.InternalServerError):
            await ask(client, START)
        with pytest.raises(ZeroDivisionError):
            await s.session.close()


async def test_misaligned_routing_is_refused_at_the_end(checkpoint: Path) -> None:
    import dataclasses

    def longer(generation: Any) -> Any:
        return dataclasses.replace(generation, routed_experts=np.repeat(generation.routed_experts, 2, axis=0))

    async with served(checkpoint, [longer, "one"]) as s, openai_client(s) as client:
        await ask(client, START)
        with pytest.raises(AlignmentError, match="rows are needed"):
            await s.session.close()


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 200_000, 400),
        (b'{"a":' * 100_000, 400),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": {"a": 1}}]}', 400),
        (b"x" * (2 << 20), 413),
    ],
)
async def test_bad_bodies_are_refused_and_noted_once(checkpoint: Path, body: bytes, status: int) -> None:
    async with served(checkpoint, ["still here"]) as s, http_client(s) as http, openai_client(s) as client:
        for content in (body, chunks(body)):
            response = await http.post("/chat/completions", content=content)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert (await ask(client, START)).choices[0].message.content == "still here"
        exchanges, segments, _ = await s.session.close()
        noted = 0 if status == 413 else 2
        assert [exchange.kind for exchange in exchanges] == ["discarded"] * noted + ["policy"]
        assert len(segments) == 1 and all(len(exchange.request) <= 1 << 16 for exchange in exchanges)


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, max(len(body), 1), 1 << 17):
        yield body[start : start + (1 << 17)]


async def test_a_large_body_within_the_limit_passes(checkpoint: Path) -> None:
    settings = {"max_body_mb": 64, "max_prompt_tokens": 100}
    async with served(checkpoint, [], **settings) as s, openai_client(s) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, [{"role": "user", "content": "word " * 90_000}])
        assert caught.value.code == "context_length_exceeded"


# ---------------------------------------------------------------- lost answers, concurrency, the end


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_client_that_leaves_cancels_its_call_and_its_retry_replaces_it(checkpoint: Path) -> None:
    gate = asyncio.Event()
    async with served(checkpoint, [gate, "never", "retried"]) as s, openai_client(s, timeout=0.2) as impatient:
        with pytest.raises(openai.APITimeoutError):
            await ask(impatient, START)
        await until(lambda: not s.session._work)
        s.engine.script = ["retried"]
        async with openai_client(s) as client:
            assert (await ask(client, START)).choices[0].message.content == "retried"
        exchanges, segments, _ = await s.session.close()
        assert [(e.kind, e.error) for e in exchanges] == [
            ("discarded", "the client went away before the answer was there"),
            ("policy", ""),
        ]
        assert [segment.exchanges for segment in segments] == [("x1",)]


def raw_request(s: Served) -> bytes:
    body = json.dumps({"model": MODEL, "messages": START, "tools": [TERMINAL]}).encode()
    head = (
        f"POST /t/{s.session.path_name}/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {s.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_an_answer_that_nobody_read_is_lost_and_its_retry_replaces_it(checkpoint: Path) -> None:
    """The client closes its socket with the whole answer unread: only the reset tells."""
    async with served(checkpoint, ["unread", "read"]) as s, openai_client(s) as client:
        port = int(s.url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(raw_request(s))
            await until(lambda: s.session.turns.conversation.turns and s.session._calls[0].response)
            await asyncio.sleep(0.05)
        await until(lambda: s.session.turns.conversation.turns[0].broken)
        await ask(client, START)
        exchanges, segments, _ = await s.session.close()
        assert [exchange.kind for exchange in exchanges] == ["discarded", "policy"]
        assert len(exchanges[0].sampled_ids) > 0
        assert [segment.exchanges for segment in segments] == [("x1",)]


async def test_concurrent_branches_are_segments_of_one_trial(checkpoint: Path) -> None:
    gate = asyncio.Event()
    async with served(checkpoint, [gate, "slow", "fast"]) as s, openai_client(s) as client:
        slow = asyncio.create_task(ask(client, [*START, {"role": "user", "content": "agent 1"}]))
        await until(lambda: len(s.engine.calls) == 1)
        assert (await ask(client, [*START, {"role": "user", "content": "agent 2"}])).choices[
            0
        ].message.content == "slow"
        gate.set()
        assert (await slow).choices[0].message.content == "fast"
        exchanges, segments, _ = await s.session.close()
        assert len(exchanges) == 2 and len(segments) == 2
        targets = sorted(segment.token_ids[segment.target].tolist() for segment in segments)
        assert targets == sorted(s.engine.sampled)


async def test_close_ends_running_calls_and_may_be_called_twice(checkpoint: Path) -> None:
    async with served(checkpoint, [asyncio.Event()]) as s, openai_client(s) as client, http_client(s) as http:
        running = asyncio.create_task(ask(client, START))
        await until(lambda: len(s.engine.calls) == 1)
        captured = await s.session.close()
        assert await s.session.close() == captured
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            await running
        with pytest.raises(httpx.TransportError):
            await http.get("/models")
        exchanges, segments, termination = captured
        assert [(e.kind, e.error) for e in exchanges] == [("discarded", "the trial ended before the answer was there")]
        assert segments == () and termination is None
        assert not s.session._work


async def test_slow_and_half_open_clients_hold_nothing_up(checkpoint: Path) -> None:
    async with served(checkpoint, ["fine"]) as s, openai_client(s) as client:
        port = int(s.url.split(":")[2].split("/")[0])
        with contextlib.ExitStack() as stack:
            stalled = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
            request = raw_request(s)
            stalled[0].sendall(request[:30])
            stalled[1].sendall(request[:-10])
            stalled[2].sendall(b"\x00garbage\r\n\r\n")
            assert (await ask(client, START)).choices[0].message.content == "fine"
            async with asyncio.timeout(10):
                exchanges, _, _ = await s.session.close()
        assert len(exchanges) == 1


async def test_start_and_open_check_their_order_and_limits(checkpoint: Path) -> None:
    from proxy_pieces import SETTINGS, ScriptedEngine, model_info

    proxy = LlmProxy(**(SETTINGS | {"max_prompt_tokens": 4096}))
    engine: Any = ScriptedEngine(encode=lambda text: [], script=[])
    with pytest.raises(RunError):
        proxy.open(make_trial(checkpoint), s_harness(), 8080)
    with pytest.raises(ConfigError) as caught:
        await proxy.start(model_info(checkpoint), engine)
    assert caught.value.key == "proxy.max_prompt_tokens"
    await proxy.stop()
    await proxy.stop()


async def test_a_huge_prompt_is_rendered_beside_the_loop(checkpoint: Path) -> None:
    """While one client's prompt is being tokenised, others are answered."""
    async with served(checkpoint, [], max_body_mb=8) as s, openai_client(s) as client, http_client(s) as http:
        await http.get("/models")
        s.session.turns.renderer.longest_token = sys.maxsize  # as of a vocabulary that shows no bound
        huge = asyncio.create_task(ask(client, [{"role": "user", "content": "word " * 100_000}]))
        await until(lambda: s.session.turns._running == 1)
        for _ in range(3):
            assert (await http.get("/models")).status_code == 200
        assert s.session.turns._running == 1, "the prompt is still being rendered"
        with pytest.raises(openai.BadRequestError):
            await huge
