"""What no client should send, over a real socket: a 4xx or a right answer, one exchange each, and nothing is left.

Of an agent that knows its trial's key, too: it can hurt no other trial, nor end the run.
"""

import asyncio
import contextlib
import gc
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import uvicorn.protocols.http.auto
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from proxy_pieces import MODEL, TERMINAL, Part, Served, make_checkpoint, served
from raw_http import Answer, connected, head, nothing_left, post, raw_socket, reset, talk, until
from wire_pieces import changed, places

from engine.proxy.session import REFUSED_BODIES, REFUSED_BODY
from engine.proxy.sockets import MAX_CONNECTIONS, MAX_HEAD, Connection
from engine.tokens.tokenizer import CheckpointTokenizer

FUNCTION: dict[str, Any] = TERMINAL["function"]  # type: ignore[assignment]
CALL = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "out"},
        ],
        "tools": [TERMINAL],
        "max_tokens": 9,
        "stream": False,
    },
    "/v1/responses": {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "function_call", "call_id": "c", "name": "terminal", "arguments": '{"command": "ls"}'},
            {"type": "function_call_output", "call_id": "c", "output": "out"},
        ],
        "tools": [{"type": "function", "strict": None} | FUNCTION],
        "max_output_tokens": 9,
        "stream": True,
    },
    "/v1/messages?beta=true": {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "terminal", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "out"}]},
        ],
        "tools": [{"name": "terminal", "input_schema": FUNCTION["parameters"]}],
        "max_tokens": 9,
        "stream": True,
    },
}
COUNT = "/v1/messages/count_tokens"
PATHS = sorted(BODIES)
EACH = pytest.mark.parametrize("path", PATHS)
CONTROL = {"model": MODEL, "messages": [{"role": "user", "content": "go"}]}
GONE = "the client went away before the answer was there"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(params=["h11", "httptools"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """uvicorn takes whichever of its two is installed; nothing may depend on it."""
    module = pytest.importorskip(f"uvicorn.protocols.http.{request.param}_impl")
    name = {"h11": "H11Protocol", "httptools": "HttpToolsProtocol"}[request.param]
    monkeypatch.setattr(uvicorn.protocols.http.auto, "AutoHTTPProtocol", getattr(module, name))
    return str(request.param)


BOTH = pytest.mark.usefixtures("parser")


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


async def alive(s: Served) -> None:
    """Another client of the trial is served, whatever the first one does."""
    (answer,) = await talk(s, post(s, "/v1/chat/completions", dumped(CONTROL)))
    assert answer.status == 200


async def closed(s: Served, recorded: list[bytes]) -> None:
    """Each request was recorded once, as it came; no fault was noted."""
    async with asyncio.timeout(30):
        exchanges, _, _ = await s.session.close()
    assert [exchange.id for exchange in exchanges] == [f"x{index}" for index in range(len(recorded))]
    for exchange, body in zip(exchanges, recorded, strict=True):
        kept = body[:REFUSED_BODY] if exchange.error else body
        assert exchange.request == kept.decode("utf-8", "replace")
        assert exchange.error or exchange.response


# ---------------------------------------------------------------- bodies


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


NO_REQUEST = {
    "empty": b"",
    "cut": b'{"model": "tiny", "mess',
    "list": b"[]",
    "null": b"null",
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "UTF-16": '{"model": "tiny"}'.encode("utf-16"),
    "NaN": b'{"model": NaN}',
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "endless number": b'{"model": ' + b"9" * 100_000 + b"}",
    "control character": b'{"model": "a\x00b"}',
    "binary": bytes(range(256)) * 40,
}


@EACH
async def test_what_is_no_request_is_refused_and_recorded_once(checkpoint: Path, path: str) -> None:
    async with nothing_left(), served(checkpoint, []) as s:
        for name, body in NO_REQUEST.items():
            (answer,) = await talk(s, post(s, path, body))
            assert answer.status == 400 and json.loads(answer.body)["error"]["message"], name
        await closed(s, list(NO_REQUEST.values()))


@EACH
async def test_numbers_and_keys_without_measure(checkpoint: Path, path: str) -> None:
    body = BODIES[path]
    limit = next(key for key in body if key.startswith("max_"))
    raw = dumped(body | {limit: "mark"})
    sent = [raw.replace(b'"mark"', number) for number in (b"1e999", b"1e308", b"%d" % 2**70, b"-1", b"0", b"1.5")]
    sent.append(raw.replace(b'"mark"', b"9" * 18))
    sent.append(dumped(body)[:-1] + b', "model": "other", "model": "tiny"}')
    sent.append(dumped(body)[:-1] + b', "model": "other"}')
    async with served(checkpoint, []) as s:
        statuses = [(await talk(s, post(s, path, one)))[0].status for one in sent]
        assert statuses == [400] * 6 + [200, 200, 404]
        await closed(s, sent)


@EACH
async def test_schemas_and_arguments_of_any_depth(checkpoint: Path, path: str) -> None:
    """What fits by itself may not fit into the body, or the prompt, around it."""
    body = BODIES[path]
    depths = (100, 220, *range(232, 258), 900)
    tools = [place for place in places(body) if place[-1] in ("parameters", "input_schema")]
    given = [place for place in places(body) if place[-1] in ("arguments", "input")]
    sent = []
    async with served(checkpoint, [], max_turns=200, max_prompt_tokens=4000) as s:
        for depth in depths:
            for place in (*tools, *given):
                deep = nested(depth)
                value = json.dumps(deep) if place[-1] == "arguments" else deep
                if isinstance(places_value(body, place), dict | str):
                    sent.append(dumped(changed(body, place, value)))
                    (answer,) = await talk(s, post(s, path, sent[-1]))
                    assert answer.status in (200, 400), (depth, place, answer)
        await closed(s, sent)


def places_value(body: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        body = body[key]
    return body


@EACH
async def test_the_models_own_arguments_of_any_depth(checkpoint: Path, path: str) -> None:
    """A policy that repeats itself nests without end: it is a turn as any other."""
    script: list[Any] = [
        '<tool_call>\n{"name": "terminal", "arguments": ' + json.dumps(nested(depth)) + "}\n</tool_call>"
        for depth in (100, 236, 248, 252, 253)
    ]
    first = next(key for key in BODIES[path] if key.startswith("max_"))
    body = dumped({key: value for key, value in BODIES[path].items() if key != first} | {first: 4000})
    async with served(checkpoint, script, max_tokens_per_turn=4000, max_response_tokens=30_000) as s:
        for _ in range(5):
            assert [answer.status for answer in await talk(s, post(s, path, body))] == [200]
        await closed(s, [body] * 5)


@EACH
async def test_a_body_of_20_mb_is_answered_at_once(checkpoint: Path, path: str) -> None:
    text = "x" * 20_000_000
    body = dumped(BODIES[path]).replace(b'"go"', dumped(text))
    async with nothing_left(), served(checkpoint, [], max_body_mb=32) as s:
        (answer,) = await talk(s, post(s, path, body))
        assert answer.status in (200, 400)
        assert b"context" in answer.body or b"prompt is too long" in answer.body
        await alive(s)
        (answer,) = await talk(s, post(s, path, body + b" " * (13 << 20)))
        assert answer.status == 413
        await closed(s, [body, dumped(CONTROL)])


@EACH
async def test_a_body_of_20_mb_whose_prompt_fits_is_answered(checkpoint: Path, path: str) -> None:
    """A long text with each letter escaped, and the rest white space: it is sampled from and kept to the byte."""
    sentence, number = "a helpful assistant that fixes code. ", 1_000
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in sentence).encode()
    body = dumped(BODIES[path] | {"stream": False}).replace(b'"go"', b'"%s"' % (escaped * number))
    body = b"{" + b" " * (20_000_000 - len(body)) + body[1:]
    room = {"max_context": 1 << 18, "max_prompt_tokens": 1 << 17, "max_response_tokens": 1 << 17}
    async with nothing_left(), served(checkpoint, ["Done."], max_body_mb=32, moe=False, **room) as s:
        (answer,) = await talk(s, post(s, path, body))
        assert answer.status == 200 and b"Done." in answer.body
        (asked,) = s.engine.calls
        prompt = CheckpointTokenizer(checkpoint).decode(asked.prompt)
        assert prompt.count(sentence.strip()) == number
        await closed(s, [body])


async def test_connections_leave_no_object_behind(checkpoint: Path) -> None:
    async with served(checkpoint, []) as s:
        for _ in range(5):
            await alive(s)
            await talk(s, b"nonsense\r\n\r\n")
        await s.session.close()
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Connection]


async def test_floods_fill_no_memory(checkpoint: Path) -> None:
    body = b"{" * 70_000
    number = REFUSED_BODIES // REFUSED_BODY + 20
    async with served(checkpoint, []) as s, connected(s) as (reader, writer):
        for _ in range(number):
            writer.write(post(s, "/v1/responses", body, close=False))
            assert b" 400 " in await reader.readline()
            while line := (await reader.readline()).strip().lower():
                if line.startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            await reader.readexactly(length)
        exchanges, _, _ = await s.session.close()
    assert len(exchanges) == number
    assert sum(len(exchange.request) for exchange in exchanges) <= REFUSED_BODIES


# ---------------------------------------------------------------- paths and keys


@BOTH
@pytest.mark.parametrize("path", [*PATHS, COUNT, "/v1/models", "/api/hello"])
async def test_other_methods_and_paths(checkpoint: Path, path: str) -> None:
    async with served(checkpoint, []) as s:
        allowed = {"POST"} if path in (*PATHS, COUNT) else {"GET", "HEAD"}
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "GET"):
            async with connected(s) as (reader, writer):
                writer.write(head(s, method, path, "Connection: close") + b"\r\n")
                status, _, rest = (await reader.read()).partition(b"\r\n")
            if method in allowed:
                assert b" 200 " in status
            else:
                assert b" 405 " in status and b"\r\nallow: " in b"\r\n" + rest.lower()
        bare = path.partition("?")[0]
        for odd in (f"{bare}/", f"{bare}/x", f"/{bare}", f"{bare}%00", f"{bare}%ff", bare.upper(), f"{bare}\xff"):
            (answer,) = await talk(s, head(s, "POST", odd, "Connection: close") + b"\r\n")
            assert 400 <= answer.status < 500 and len(answer.body) < 1000, odd
        for query in ("?\xff", "?" + "a" * 2000, "?beta=%ff"):
            (answer,) = await talk(s, head(s, "GET", f"{bare}{query}", "Connection: close") + b"\r\n")
            assert answer.status in (200, 400, 405), query
        await closed(s, [])


@BOTH
async def test_no_trial_reaches_another(checkpoint: Path) -> None:
    async with served(checkpoint, []) as a, served(checkpoint, []) as b:
        body = dumped(CONTROL)
        for key in ("", "wrong", b.key, a.key[:-1], a.key + " x", "\xff", "k" * 10_000):
            (answer,) = await talk(a, post(a, "/v1/chat/completions", body, key=key))
            assert answer.status == 401, key
        crossed = post(b, "/v1/chat/completions", body).replace(b.session.path_name.encode(), b"e0-other-s0-a0")
        assert [answer.status for answer in await talk(b, crossed)] == [404]
        await alive(b)
        await closed(a, [])
        await closed(b, [body])


# ---------------------------------------------------------------- framing

GARBLED = {
    "negative length": ("Content-Length: -1", b"{}"),
    "letters for a length": ("Content-Length: 1x", b"{}"),
    "no ASCII digit": ("Content-Length: \xb2", b"{}"),
    "endless length": ("Content-Length: " + "9" * 5000, b"{}"),
    "two lengths": ("Content-Length: 2\r\nContent-Length: 3", b"{}"),
    "length and chunks": ("Content-Length: 2\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "unknown coding": ("Transfer-Encoding: zip", b"{}"),
    "no chunk size": ("Transfer-Encoding: chunked", b"zz\r\n{}\r\n0\r\n\r\n"),
    "chunk too long": ("Transfer-Encoding: chunked", b"2\r\n{}{}\r\n0\r\n\r\n"),
    "endless chunk size": ("Transfer-Encoding: chunked", b"f" * 500 + b"\r\n"),
    "space in a name": ("Content Length: 2", b"{}"),
    "no colon": ("nonsense", b"{}"),
}


@BOTH
async def test_garbled_framing_is_refused_and_never_a_request(checkpoint: Path) -> None:
    async with nothing_left(), served(checkpoint, []) as s:
        for name, (line, body) in GARBLED.items():
            for path in PATHS:
                found = await talk(s, head(s, "POST", path, line) + b"\r\n" + body, half_close=True)
                assert all(400 <= answer.status < 500 for answer in found), name
        await alive(s)
        exchanges, _, _ = await s.session.close()
        assert all(exchange.error for exchange in exchanges[:-1])


@BOTH
async def test_a_head_without_end_is_refused(checkpoint: Path) -> None:
    async with served(checkpoint, []) as s, connected(s) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(head(s, "POST", PATHS[0]))
            for _ in range(3 * MAX_HEAD // 10_000):
                writer.write(b"x-more: " + b"y" * 9990 + b"\r\n")
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert b" 400 " in await reader.readline()
        await until(lambda: not s.session._sockets[0]._state.connections)
        await alive(s)


@BOTH
async def test_idle_connections_are_bounded_and_the_harness_is_served(checkpoint: Path) -> None:
    async with nothing_left(), served(checkpoint, []) as s:
        with contextlib.ExitStack() as stack:
            idle = []
            for _ in range(MAX_CONNECTIONS + 40):
                idle.append(stack.enter_context(raw_socket(s)))
                await asyncio.sleep(0)
            idle[-1].sendall(b"POST /")
            await until(lambda: len(s.session._sockets[0]._state.connections) >= MAX_CONNECTIONS)
            await alive(s)
            await until(lambda: len(s.session._sockets[0]._state.connections) <= MAX_CONNECTIONS)
            await closed(s, [dumped(CONTROL)])


# ---------------------------------------------------------------- clients that behave oddly


@BOTH
@EACH
async def test_a_slow_client_is_waited_for(checkpoint: Path, path: str) -> None:
    async with served(checkpoint, []) as s:
        body = dumped(BODIES[path])
        raw = post(s, path, body)
        assert [answer.status for answer in await talk(s, *(raw[at : at + 1] for at in range(len(raw))))] == [200]
        await closed(s, [body])


@BOTH
@EACH
async def test_a_half_closed_client_is_told_and_waited_for_no_longer(checkpoint: Path, path: str) -> None:
    """It cannot be told from one that is gone; what needs no engine it gets."""
    async with nothing_left(), served(checkpoint, [asyncio.Event()]) as s:
        body = dumped(BODIES[path])
        (answer,) = await talk(s, post(s, path, body, close=False), half_close=True)
        assert answer.status == 499 and json.loads(answer.body)["error"]["message"] == GONE
        (answer,) = await talk(s, post(s, path, b"[]", close=False), half_close=True)
        assert answer.status == 400
        (answer,) = await talk(s, post(s, COUNT, dumped(CONTROL), close=False), half_close=True)
        assert answer.status == 200
        assert await talk(s, post(s, path, body, close=False)[:-5], half_close=True) == []
        await closed(s, [body, b"[]"])
        assert not s.session.turns._running


@BOTH
async def test_a_client_that_never_reads_holds_nothing_up(checkpoint: Path) -> None:
    async with nothing_left(), served(checkpoint, []) as s, contextlib.AsyncExitStack() as stack:
        deaf = stack.enter_context(raw_socket(s))
        asked = (head(s, "GET", "/v1/models") + b"\r\n") * 100
        with contextlib.suppress(BlockingIOError, ConnectionError):
            for _ in range(5000):
                deaf.send(asked)
                await asyncio.sleep(0)
            raise AssertionError("the server reads on, though nobody takes its answers")
        await alive(s)
        await closed(s, [dumped(CONTROL)])


@BOTH
@EACH
async def test_requests_sent_ahead_are_answered_in_order(checkpoint: Path, path: str) -> None:
    async with served(checkpoint, ["one", "two", "three"]) as s:
        body = dumped(BODIES[path] | {"stream": False})
        raw = post(s, path, body, close=False) * 2 + post(s, path, body)
        found = await talk(s, raw)
        assert [answer.status for answer in found] == [200] * 3
        texts = [next(word for word in ("one", "two", "three") if word.encode() in answer.body) for answer in found]
        assert texts == ["one", "two", "three"]
        await closed(s, [body] * 3)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", [reset, lambda made: made.close()], ids=["reset", "closed"])
async def test_a_client_that_leaves_requests_behind_runs_none_of_them(checkpoint: Path, stream: bool, how: Any) -> None:
    script: list[Any] = [Part("Q and "), asyncio.Event()]
    async with nothing_left(), served(checkpoint, script, client={"hold_back": "none"}) as s:
        body = dumped(CONTROL | {"stream": stream})
        made = raw_socket(s)
        made.sendall(post(s, "/v1/chat/completions", body, close=False) * 3)
        await until(lambda: s.engine.calls and not s.engine.script)
        how(made)
        await until(lambda: not s.session._work and s.session._calls[0].error)
        exchanges, segments, _ = await s.session.close()
        assert segments == () and len(s.engine.calls) == 1
        assert {(exchange.kind, exchange.error) for exchange in exchanges} == {("discarded", GONE)}


# ---------------------------------------------------------------- anything

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)

FRAMES = ("length", "chunks", "short", "long", "garbage in chunks", "two lengths")


@st.composite
def bodies(draw: st.DrawFn, path: str) -> bytes:
    """A good body with anything at up to three places, or its bytes with holes and noise."""
    body: Any = BODIES[path]
    for _ in range(draw(st.integers(0, 3))):
        body = changed(body, draw(st.sampled_from(list(places(body)) or [()])), draw(JSON))
    raw = dumped(body)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 3)))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=6)) + raw[at + draw(st.integers(0, 8)) :]
    return raw


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes, str, list[int], bool]:
    """Path, body, framing, where the bytes are cut, whether the client ends its side."""
    path = draw(st.sampled_from([*PATHS, COUNT]))
    body = draw(bodies(path if path in BODIES else PATHS[1]))
    frame = draw(st.sampled_from(("length",) * 4 + FRAMES))
    cuts = draw(st.lists(st.integers(0, len(body) + 300), max_size=5))
    return path, body, frame, sorted(cuts), draw(st.booleans())


def framed(s: Served, path: str, body: bytes, frame: str) -> bytes:
    half = len(body) // 2
    lengths = {"length": len(body), "short": half, "long": len(body) + 9, "two lengths": len(body)}
    if frame in lengths:
        lines = [f"Content-Length: {lengths[frame]}"] + ["Content-Length: 1"] * (frame == "two lengths")
        return head(s, "POST", path, "Connection: close", *lines) + b"\r\n" + body
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    end = b"0\r\n\r\n" if frame == "chunks" else b"xyz\r\n"
    return head(s, "POST", path, "Connection: close", "Transfer-Encoding: chunked") + b"\r\n" + chunks + end


async def play(s: Served, path: str, body: bytes, frame: str, cuts: list[int], half_close: bool) -> list[Answer]:
    """One request; the books are right after it."""
    raw = framed(s, path, body, frame)
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    before = len(s.session._calls)
    ends = half_close or frame not in ("length", "chunks")
    found = await talk(s, *pieces, half_close=ends)
    await until(lambda: not s.session._work)
    calls = s.session._calls[before:]
    assert all(answer.status == 200 or 400 <= answer.status < 500 for answer in found), found
    if frame in ("length", "chunks"):
        assert len(found) == 1 and len(calls) == (path != COUNT)
        assert ends or (path == COUNT) or bool(calls[0].error) == (found[0].status != 200)
        assert all(body.startswith(bytes(call.request)) for call in calls)
    assert all(call.error or call.response for call in calls)
    assert not s.session.turns._running and s.session._fault is None
    return found


def fuzz(checkpoint: Path, examples: int, number: int) -> None:
    """Many odd requests against one session, which then still serves and closes in order."""
    with asyncio.Runner() as runner:
        context = served(checkpoint, [], max_turns=100_000, max_response_tokens=10_000_000)
        s = runner.run(context.__aenter__())

        @seed(number)
        @settings(max_examples=examples, database=None)
        @given(request=requests())
        def check(request: tuple[str, bytes, str, list[int], bool]) -> None:
            runner.run(play(s, *request))

        check()
        runner.run(alive(s))
        assert runner.run(s.session.close())[2] is None
        runner.run(context.__aexit__(None, None, None))


def test_any_request_is_answered_and_recorded_once(checkpoint: Path) -> None:
    fuzz(checkpoint, 60, 0)


@pytest.mark.slow
def test_any_request_for_a_minute(checkpoint: Path) -> None:
    end = time.monotonic() + 60
    number = random.randrange(1 << 30)
    while time.monotonic() < end:
        number += 1
        print(f"seed {number}")
        fuzz(checkpoint, 400, number)
