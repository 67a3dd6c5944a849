"""Clients that behave as none should, with both of uvicorn's parsers: nothing hangs, nothing is left.

Of an agent that knows its trial's key, too: it can hurt no other trial, nor end the run.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import uvicorn.protocols.http.auto
from hostile_pieces import BODIES, BOTH, CONTROL, COUNT, EACH, GONE, PATHS, alive, closed, dumped
from proxy_pieces import Part, make_checkpoint, served
from raw_http import connected, head, nothing_left, post, raw_socket, reset, talk, until

from engine.proxy.sockets import MAX_CONNECTIONS, MAX_HEAD


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
