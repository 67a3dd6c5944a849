"""What a trial keeps of its calls: bodies once, routed experts on disk; both read back exact."""

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import AlignmentError
from engine.proxy.bodies import Bodies
from engine.proxy.spill import INLINE_BYTES, Rows, Spill


def history(turns: int, branch: str = "") -> bytes:
    messages = [{"role": "user", "content": f"{branch}{number} " + "x" * 1000} for number in range(turns)]
    return orjson.dumps({"model": branch, "messages": messages, "tools": [{"name": "t" * 3000}]})


def test_a_history_that_grows_is_held_once() -> None:
    """A hundred bodies, 5 MB together; what is held is little more than the last of them."""
    bodies = Bodies()
    sent = [history(turns) for turns in range(100)]
    kept = [bodies.keep(body) for body in sent]
    assert [bytes(body) for body in kept] == sent
    assert bodies.held < 1.05 * len(sent[-1]) < sum(map(len, sent)) / 30


def test_branches_that_take_turns_are_held_once_each() -> None:
    bodies = Bodies()
    sent = [history(turns, branch) for turns in range(50) for branch in ("a", "b", "c")]
    kept = [bodies.keep(body) for body in sent]
    assert [bytes(body) for body in kept] == sent
    assert bodies.held < 1.1 * sum(map(len, sent[-3:]))


def test_the_same_body_again_costs_nothing() -> None:
    bodies = Bodies()
    bodies.keep(history(9))
    held = bodies.held
    assert bytes(bodies.keep(history(9))) == history(9) and bodies.held == held


@given(st.lists(st.binary(max_size=12) | st.text("ab", max_size=30).map(str.encode), max_size=12))
def test_any_bodies_read_back_to_the_byte(sent: list[bytes]) -> None:
    bodies = Bodies()
    kept = [bodies.keep(body) for body in sent]
    assert [bytes(body) for body in kept] == sent
    assert bodies.held <= sum(map(len, sent))


async def test_routed_experts_read_back_exact_and_leave_nothing(tmp_path: Path) -> None:
    """Small blocks and one that is written in a thread; two types; the folder shows no file at any time."""
    random = np.random.default_rng(0)
    spill = Spill(tmp_path)
    blocks = [random.integers(0, 128, (rows, 40, 8), dtype=np.uint8) for rows in (3, INLINE_BYTES // 320 + 1, 0, 7)]
    kept = [await spill.keep(block) for block in blocks]
    wide = random.integers(0, 999, (5, 2, 2), dtype=np.uint16)
    other = await spill.keep(wide[:, ::-1])
    np.testing.assert_array_equal(spill.joined(kept), np.concatenate(blocks))
    np.testing.assert_array_equal(spill.joined([kept[3], kept[0]]), np.concatenate([blocks[3], blocks[0]]))
    np.testing.assert_array_equal(spill.joined([other]), wide[:, ::-1])
    assert list(tmp_path.iterdir()) == []
    opened = len(list(Path("/proc/self/fd").iterdir()))
    spill.close()
    spill.close()
    assert len(list(Path("/proc/self/fd").iterdir())) < opened
    with pytest.raises(AlignmentError, match=r"^0 bytes of routed experts on disk where 960 were written"):
        spill.joined(kept[:1])


async def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    await spill.keep(np.zeros((2, 4, 8), np.uint8))
    with pytest.raises(AlignmentError, match=r"^64 bytes .* where 96 were"):
        spill.joined([Rows(offset=0, shape=(3, 4, 8), dtype="|u1")])


def test_a_file_that_is_closed_while_a_thread_writes_gives_its_number_to_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that is cancelled leaves the thread; the number of its descriptor is another file's soon after."""
    spill = Spill(tmp_path)
    asyncio.run(spill.keep(np.zeros((1, 2), np.uint8)))
    number, began, go_on, plain = spill._file, threading.Event(), threading.Event(), os.pwrite

    def slow(file: int, data: memoryview, offset: int) -> int:
        began.set()
        assert go_on.wait(30)
        assert os.fstat(file).st_nlink == 0, "the trial's own file has no name"
        return plain(file, data[:1], offset)

    monkeypatch.setattr(os, "pwrite", slow)
    failed: list[BaseException] = []

    def write() -> None:
        try:
            spill._write(np.ones((3, 2), np.uint8), 2)
        except BaseException as error:
            failed.append(error)

    writer, closer = threading.Thread(target=write), threading.Thread(target=spill.close)
    writer.start()
    assert began.wait(30)
    closer.start()
    closer.join(0.2)
    (tmp_path / "other").write_bytes(b"")
    with (tmp_path / "other").open("r+b") as other:
        assert other.fileno() != number
        go_on.set()
        writer.join(30)
        closer.join(30)
    assert failed == [] and (tmp_path / "other").read_bytes() == b""
