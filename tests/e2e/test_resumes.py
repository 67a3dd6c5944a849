"""What a run that goes on keeps, redoes and refuses: the real job with stand-ins for engine, trainer and trials."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from standin_desk import Desk
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from whole_runs import prepare

from engine.store.layout import Layout
from engine.store.ledger import read_ledger
from engine.store.reader import Reader

SHORT = ("schedule.steps=2", "schedule.validation_every=0")


@pytest.fixture(scope="module")
def prepared() -> None:
    prepare()


@pytest.fixture
def desk(tmp_path: Path, prepared: None) -> Desk:
    return Desk(tmp_path)


def test_an_interrupted_update_is_finished_up_to_its_checkpoint_where_a_validation_is_due(desk: Desk) -> None:
    process = desk.start("schedule.steps=2", "schedule.validation_every=1", TRAIN_S="1")
    desk.wait_for("update 0", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "checkpoint version=000001" in desk.notes.read_text()


def test_validation_trials_are_of_the_weights_that_were_checkpointed(desk: Desk) -> None:
    given = ("schedule.steps=1", "schedule.validation_every=1", "schedule.concurrency=1")
    process = desk.start(*given, SICK="1", TRIAL_S="0.4")
    desk.wait_for("validation ", process)
    desk.wait_until(lambda: list(desk.run.glob("validation/*/*.parquet")), process)
    process.kill()  # after the update and one of two validation trials; a broken trial is tried again by the next start
    process.wait(60)
    assert desk.start(*given).wait(60) == 0
    weights = int((desk.run / "checkpoints/version=000001/weights").read_text())
    rows = [pq.read_table(path).to_pylist()[0] for path in (desk.run / "validation/step=000001").glob("*.parquet")]
    assert [row["exchanges"][0]["sampled_ids"][0] for row in rows] == [weights, weights]


@pytest.mark.parametrize("other", ["checkpoint", "data"])
def test_other_data_than_a_run_began_with_is_refused(desk: Desk, other: str) -> None:
    given = ("schedule.steps=2", "schedule.validation_every=0")
    process = desk.start(*given)
    desk.wait_for("checkpoint version=000001", process)
    process.kill()
    process.wait(60)
    written = yaml.safe_load((desk.run / "config.yaml").read_text())
    written |= {"data": dict.fromkeys(written["data"], "0" * 64)} if other == "data" else {"checkpoint": "0" * 16}
    (desk.run / "config.yaml").write_text(yaml.safe_dump(written))
    assert desk.start(*given).wait(60) == 2


def test_an_alarm_survives_a_kill_behind_the_checkpoint(desk: Desk) -> None:
    given = ("schedule.steps=1", "schedule.validation_every=0")
    assert desk.start(*given, PARTED="1", DIES="1").wait(60) == -signal.SIGKILL
    assert desk.start(*given, PARTED="1").wait(60) == 0
    assert len(list((desk.run / "alerts").glob("*-correlation.json"))) == 1


def begun(desk: Desk, *given: str) -> Path:
    """A run that was killed behind its first checkpoint."""
    process = desk.start(*given)
    desk.wait_for("checkpoint version=000001", process)
    process.kill()
    process.wait(60)
    return desk.run


def test_what_differs_since_the_first_start_is_told_and_kept_beside_what_it_wrote(desk: Desk) -> None:
    run = begun(desk, *SHORT)
    written: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    there = {**written, "code": {**written["code"], "fingerprint": "0" * 16}, "checkpoint": "0" * 16}
    (run / "config.yaml").write_text(yaml.safe_dump(there))
    assert desk.start(*SHORT, "run.other_data=true").wait(60) == 0
    assert "what differs here:\n  code: " in desk.told.read_text()
    after = yaml.safe_load((run / "config.yaml").read_text())
    (again,) = after.pop("resumed")
    assert after == there
    assert [line.partition(":")[0] for line in again["differs"]] == ["code", "checkpoint"]


def test_a_validation_that_was_cut_off_is_made_by_the_next_start_and_shown(desk: Desk) -> None:
    given = ("schedule.steps=2", "schedule.validation_every=1", "schedule.concurrency=1", "observe.tensorboard=true")
    process = desk.start(*given, TRIAL_S="0.3")
    desk.wait_for("validation ", process)
    process.kill()
    process.wait(60)
    reader = Reader(Layout(root=desk.run))
    assert "validation/reward" not in reader.step(0).metrics
    assert desk.start(*given).wait(60) == 0
    assert [record.metrics["validation/trials"] for record in reader.steps()] == [2.0, 2.0]
    (board,) = (desk.run / "tensorboard").iterdir()
    events = EventAccumulator(str(board)).Reload()
    for metric in ("validation/reward", "reward/mean"):
        assert [event.step for event in events.Scalars(metric)] == [1, 2], metric


def test_what_came_of_weights_that_are_gone_is_made_again(desk: Desk) -> None:
    given = ("schedule.steps=3", "schedule.validation_every=1", "schedule.checkpoints_kept=null")
    process = desk.start(*given, TRIAL_S="0.3")
    desk.wait_for("checkpoint version=000002", process)
    desk.wait_until(lambda: list(desk.run.glob("validation/step=000002/*.parquet")), process)
    process.kill()
    process.wait(60)
    shutil.rmtree(desk.run / "checkpoints/version=000002")
    assert desk.start(*given).wait(60) == 0
    for version in (1, 2, 3):
        weights = int((desk.run / f"checkpoints/version={version:06d}/weights").read_text())
        rows = [
            pq.read_table(file).to_pylist()[0] for file in desk.run.glob(f"validation/step={version:06d}/*.parquet")
        ]
        assert [row["exchanges"][0]["sampled_ids"][0] for row in rows] == [weights, weights]


def test_a_finished_run_says_so_whatever_this_machine_lacks(desk: Desk) -> None:
    assert desk.start(*SHORT).wait(60) == 0
    assert desk.start(*SHORT, "inference.python=/nowhere").wait(60) == 0
    assert "this run is finished" in desk.out.read_text()


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("steps/step=000000.parquet", "is missing, though checkpoint 1 says that it is done"),
        ("trajectories/step=000000/*-s1-*.parquet", "is missing, though the ledger has it as trained"),
    ],
)
def test_what_somebody_deleted_of_a_finished_step_is_named(desk: Desk, what: str, problem: str) -> None:
    run = begun(desk, *SHORT)
    next(run.glob(what)).unlink()
    assert desk.start(*SHORT).wait(60) == 3
    assert problem in desk.told.read_text()
    assert "restore it from a copy, or set the run aside with run.fresh=true" in desk.told.read_text()
    assert json.loads((run / "state.json").read_text())["phase"] != "finished"


def test_a_checkpoint_that_no_step_made_does_not_finish_a_run(desk: Desk) -> None:
    run = begun(desk, *SHORT)
    shutil.copytree(run / "checkpoints/version=000001", run / "checkpoints/version=000002")
    assert desk.start(*SHORT).wait(60) == 3
    assert "is missing, though checkpoint 2 says that it is done" in desk.told.read_text()


def test_an_attempt_that_is_run_again_takes_the_place_of_later_ones(desk: Desk) -> None:
    process = desk.start(*SHORT, SICK="first")
    desk.wait_for("update 1", process)
    process.kill()
    process.wait(60)
    shutil.rmtree(desk.run / "checkpoints/version=000001")
    assert desk.start(*SHORT).wait(60) == 0, desk.told.read_text()
    layout = Layout(root=desk.run)
    states = Counter((key[-2:], state) for (_, key), state in read_ledger(layout, 1).items() if "-s1-" in key)
    assert states == {("a0", "trained"): 2, ("a1", "excluded"): 2}
    assert sorted(Reader(layout).trials(1, "train")) == sorted(
        key for (split, key), state in read_ledger(layout, 1).items() if split == "train" and state == "trained"
    )


@pytest.mark.parametrize("how", ["deleted", "not mounted"])
def test_nothing_is_deleted_where_no_checkpoint_is_left(desk: Desk, how: str) -> None:
    process = desk.start("schedule.steps=3", "schedule.validation_every=0")
    desk.wait_for("checkpoint version=000002", process)
    process.kill()
    process.wait(60)
    before = sorted(desk.run.glob("t*/*/*.parquet"))
    shutil.rmtree(desk.run / "checkpoints")
    if how == "not mounted":
        (desk.run / "checkpoints").symlink_to("/nowhere")
    assert desk.start("schedule.steps=3", "schedule.validation_every=0").wait(60) == 3
    assert "holds no checkpoint, though 2 steps have records; restore it" in desk.told.read_text()
    assert "holds no checkpoint" in json.loads((desk.run / "state.json").read_text())["reason"]
    assert set(before) <= set(desk.run.glob("t*/*/*.parquet"))


def test_a_finished_sweep_says_so_whatever_this_machine_lacks(desk: Desk) -> None:
    given = ("-m", "schedule.steps=1", "schedule.validation_every=0", "seed=1,2")
    assert desk.start(*given).wait(60) == 0
    assert desk.start(*given, "inference.python=/nowhere").wait(60) == 0
    assert desk.out.read_text().count("this run is finished") == 2


def test_a_thread_that_never_ends_is_left_by_the_impatient(desk: Desk) -> None:
    process = desk.start(*SHORT, TRAIN_S="1000")
    desk.wait_for("update 0", process)
    for said in ("once more stops it", "stopping", "2 more", "1 more"):
        process.send_signal(signal.SIGINT)
        desk.wait_until(lambda said=said: said in desk.told.read_text(), process)  # type: ignore[misc]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "job=reap removes what is left" in desk.told.read_text()
