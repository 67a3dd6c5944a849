"""A trial is in one state, whatever was cut off, and what no arrow allows is refused."""

import os
from pathlib import Path

import pytest

from engine.core.errors import RunError
from engine.store.layout import Layout
from engine.store.ledger import Entry, Ledger, count_states, read_ledger

ONE: Entry = ("train", "e0-t-s0-a0")
TWO: Entry = ("train", "e0-t-s1-a0")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(root=tmp_path)


def go(ledger: Ledger, step: int, entries: list[Entry], *states: str) -> None:
    for state in states:
        ledger.move(step, entries, state)  # type: ignore[arg-type]


def test_a_trial_goes_its_way_and_others_do_not_move(layout: Layout) -> None:
    ledger = Ledger(layout)
    go(ledger, 0, [ONE, TWO], "pending")
    go(ledger, 0, [ONE], "running", "finished", "trained")
    assert ledger.states(0) == read_ledger(layout, 0) == {ONE: "trained", TWO: "pending"}
    assert Ledger(layout).state(0, ONE) == "trained"
    assert ledger.states(1) == {}
    assert count_states(layout) == {"train": {"pending": 1, "trained": 1}}


@pytest.mark.parametrize(
    "states",
    [
        ("running",),
        ("pending", "finished"),
        ("pending", "running", "running"),
        ("pending", "running", "finished", "running"),
        ("pending", "running", "finished", "trained", "trained"),
        ("pending", "running", "excluded", "trained"),
        ("pending", "running", "trained"),
    ],
)
def test_what_no_arrow_allows_is_refused_and_not_written(layout: Layout, states: tuple[str, ...]) -> None:
    ledger = Ledger(layout)
    go(ledger, 3, [ONE], *states[:-1])
    before = read_ledger(layout, 3)
    with pytest.raises(RunError, match=rf"trial e0-t-s0-a0 of step 3 is .* and cannot be {states[-1]}"):
        go(ledger, 3, [ONE], states[-1])
    assert read_ledger(layout, 3) == before


def test_none_of_several_moves_when_one_may_not(layout: Layout) -> None:
    ledger = Ledger(layout)
    go(ledger, 0, [ONE], "pending")
    with pytest.raises(RunError):
        go(ledger, 0, [ONE, TWO], "running")
    assert ledger.states(0) == read_ledger(layout, 0) == {ONE: "pending"}


@pytest.mark.parametrize("cut", range(2, 40, 7))
def test_a_line_that_a_kill_cut_is_dropped_and_the_next_one_is_whole(layout: Layout, cut: int) -> None:
    go(Ledger(layout), 0, [ONE], "pending", "running")
    path = layout.ledger(0)
    os.truncate(path, path.stat().st_size - cut)
    assert read_ledger(layout, 0) == {ONE: "pending"}
    again = Ledger(layout)
    go(again, 0, [ONE], "running", "finished")
    assert read_ledger(layout, 0) == again.states(0) == {ONE: "finished"}


def test_updates_without_a_checkpoint_are_taken_back(layout: Layout) -> None:
    ledger = Ledger(layout)
    for step in range(3):
        go(ledger, step, [ONE], "pending", "running", "finished", "trained")
    held_out: Entry = ("validation", "e0-v-s0-a0")
    go(ledger, 2, [held_out], "pending", "running", "finished")
    again = Ledger(layout)
    again.settle(2)
    assert [again.state(step, ONE) for step in range(3)] == ["trained", "trained", "finished"]
    assert again.state(2, held_out) == "finished"
    assert "its update was lost" in layout.ledger(2).read_text()


def test_a_full_disk_is_told_and_leaves_what_was_there(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(layout)
    go(ledger, 0, [ONE], "pending")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.core.whole.os.fsync", full)
    with pytest.raises(
        RunError, match=r"step=000000\.jsonl cannot be written: No space left.*the same command goes on"
    ):
        go(ledger, 0, [ONE], "running")
    assert ledger.states(0) == read_ledger(layout, 0) == {ONE: "pending"}
