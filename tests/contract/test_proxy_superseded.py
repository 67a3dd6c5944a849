"""A client that gives up and asks again: the new request takes the old one's place, whichever is heard of first."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from proxy_pieces import MODEL, TERMINAL, Part, make_checkpoint, served
from raw_http import answers, post, raw_socket, until

FUNCTION: Any = TERMINAL["function"]
GO: Any = {"role": "user", "content": "go"}
LONGER: Any = [GO, {"role": "user", "content": "go on"}]
PATHS = {
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages?beta=true": "messages",
}
GONE = ("discarded", "the client went away before the answer was there")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def body(path: str, messages: Any, stream: bool) -> bytes:
    limit = {"max_tokens": 99} if "messages?" in path else {}
    return json.dumps({"model": MODEL, PATHS[path]: messages, "stream": stream} | limit).encode()


async def read(made: Any) -> bytes:
    loop = asyncio.get_running_loop()
    raw = b""
    async with asyncio.timeout(30):
        while more := await loop.sock_recv(made, 1 << 16):
            raw += more
    return raw


@pytest.mark.parametrize("messages", [[GO], LONGER], ids=["again", "longer"])
@pytest.mark.parametrize("begun", [False, True], ids=["queued", "begun"])
@pytest.mark.parametrize("path", PATHS)
async def test_what_its_client_gave_up_is_superseded(checkpoint: Path, path: str, messages: Any, begun: bool) -> None:
    """Of one allowed turn: the call that nobody waits for must not have used it up."""
    script: list[Any] = [*([Part("Q and ")] if begun else []), asyncio.Event()]
    async with served(checkpoint, script, max_turns=1, client={"hold_back": "none"}) as s:
        with raw_socket(s) as old, raw_socket(s) as new:
            await asyncio.sleep(0.01)
            old.sendall(post(s, path, body(path, [GO], True), close=False))
            await until(lambda: s.engine.calls and not s.engine.script)
            old.close()
            new.sendall(post(s, path, body(path, messages, False)))  # heard of in the same moment
            (answer,) = answers(await read(new))
            assert answer.status == 200 and b"done" in answer.body
        exchanges, segments, termination = await s.session.close()
    assert [(exchange.kind, exchange.error) for exchange in exchanges] == [GONE, ("policy", "")]
    assert [segment.exchanges for segment in segments] == [("x1",)] and termination is None


@pytest.mark.parametrize("path", PATHS)
async def test_an_equal_request_beside_one_that_is_waited_for_is_another(checkpoint: Path, path: str) -> None:
    gate = asyncio.Event()
    async with served(checkpoint, [gate, "one", "two"]) as s:
        with raw_socket(s) as first, raw_socket(s) as second:
            raw = post(s, path, body(path, [GO], False))
            first.sendall(raw)
            await until(lambda: s.engine.calls)
            second.sendall(raw)
            await until(lambda: len(s.engine.calls) == 2)
            gate.set()
            found = answers(await read(first)) + answers(await read(second))
        assert [answer.status for answer in found] == [200, 200]
        exchanges, segments, _ = await s.session.close()
    assert [exchange.kind for exchange in exchanges] == ["policy"] * 2 and len(segments) == 2
