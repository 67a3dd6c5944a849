"""What a person put into a run's directory is passed over; what is the run's and damaged is named."""

import json
from pathlib import Path

import pytest

from engine.core.errors import RunError
from engine.core.records import StepRecord
from engine.store.layout import Layout
from engine.store.ledger import Ledger, count_states, ledger_steps, read_ledger
from engine.store.reader import Reader
from engine.store.writer import Writer

ODD = (
    "step=000000 (copy)",
    "step=000001.bak",
    "step=",
    "step=junk",
    "step=1",
    "step=-00001",
    "step=00000001",
    "step=٠٠٠٠٠١",
    "step=0x0001",
    "step=000001~",
    "notes",
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(root=tmp_path)


def test_ledgers(layout: Layout) -> None:
    ledger = Ledger(layout)
    ledger.move(0, [("train", "e0-t-s0-a0")], "pending")
    for name in ODD:
        (layout.ledgers / f"{name}.jsonl").write_text('{"split": "train", "trial": "x", "state": "trained"}\n')
    (layout.ledgers / "step=000001.jsonl.bak").write_text("{}")
    assert ledger_steps(layout) == [0]
    assert count_states(layout) == {"train": {"pending": 1}}
    Ledger(layout).settle(0)


def test_steps_trials_checkpoints_and_routing(layout: Layout) -> None:
    writer, reader = Writer(layout), Reader(layout)
    writer.step(StepRecord(step=0, policy_version=1, metrics={}))
    for name in ODD:
        (layout.steps / f"{name}.parquet").write_text("")
        for folder in (layout.rollouts("train"), layout.root / "routing"):
            (folder / name).mkdir(parents=True)
        (layout.checkpoints / name.replace("step", "version")).mkdir(parents=True)
    for folder in (layout.trials(7, "train"), layout.root / "routing" / "step=000007", layout.checkpoint(7)):
        folder.mkdir(parents=True)
    for name in ("e0-t-s0-a0", "e0-t-s0-a0 (copy)", "notes", ".e0-t-s0-a0"):
        (layout.trials(7, "train") / f"{name}.parquet").write_text("")
    assert [record.step for record in reader.steps()] == [0]
    assert reader.rollouts("train") == reader.checkpoints() == [7]
    assert reader.trials(7, "train") == ["e0-t-s0-a0"]
    writer.forget_routing(7)
    assert {path.name for path in (layout.root / "routing").iterdir()} == set(ODD)


def test_what_came_of_weights_that_are_gone_is_deleted_and_nothing_else(layout: Layout) -> None:
    writer = Writer(layout)
    writer.step(StepRecord(step=1, policy_version=2, metrics={}))
    writer.alert(1, "correlation", {})
    layout.trials(2, "train").mkdir(parents=True)
    own = [layout.step(1), layout.trials(2, "train"), *layout.alerts.iterdir()]
    copies = [path.with_name(f"{path.stem} (copy){path.suffix}") for path in own]
    for path in copies:
        path.mkdir()
    writer.forget_beyond(1)
    assert [path.exists() for path in own] == [False, False, False]
    assert [path.exists() for path in copies] == [True, True, True]


def test_numbers_beyond_six_digits_are_the_run_s_too(layout: Layout) -> None:
    layout.checkpoint(1_234_567).mkdir(parents=True)
    layout.checkpoint(999_999).mkdir()
    assert Reader(layout).checkpoints() == [999_999, 1_234_567]


@pytest.mark.parametrize(
    "line",
    [
        {"split": ["train"], "trial": "e0-t-s0-a0", "state": "trained"},
        {"split": "train", "trial": {"a": 1}, "state": "trained"},
        {"split": "train", "trial": "e0-t-s0-a0", "state": ["trained"]},
        {"split": "train", "trial": "e0-t-s0-a0", "state": "eaten"},
        {"split": "train", "state": "trained"},
        ["train"],
        3,
        None,
    ],
)
def test_a_line_that_is_whole_and_no_state_of_a_trial_is_named(layout: Layout, line: object) -> None:
    Ledger(layout).move(0, [("train", "e0-t-s0-a0")], "pending")
    with layout.ledger(0).open("a") as file:
        file.write(f'{{"cut\n\n{json.dumps(line)}\n')
    with pytest.raises(RunError) as raised:
        read_ledger(layout, 0)
    assert str(raised.value) == (
        f"{layout.ledger(0)} is damaged (line 4 is no state of a trial); "
        "restore it from a copy, or set the run aside with run.fresh=true"
    )
