"""Any request at all, drawn at random: a 4xx or a right answer, one exchange each, and nothing is left."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hostile_pieces import BODIES, COUNT, PATHS, alive, dumped
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from proxy_pieces import Served, make_checkpoint, served
from raw_http import Answer, head, talk, until
from wire_pieces import changed, places


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


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
