"""Bodies that are no request, or that no body should be, over a real socket: a 4xx or a right answer, recorded once."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from hostile_pieces import BODIES, CONTROL, EACH, alive, closed, dumped
from proxy_pieces import make_checkpoint, served
from raw_http import connected, nothing_left, post, talk
from wire_pieces import changed, places

from engine.proxy.session import REFUSED_BODIES, REFUSED_BODY
from engine.proxy.sockets import Connection
from engine.tokens.tokenizer import CheckpointTokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


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
