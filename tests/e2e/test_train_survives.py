"""What a run is asked to survive, on the real TrainJob with stand-ins for engine, trainer and trials.

Needs what `whole_runs.prepare` builds."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from whole_runs import OVERRIDES, ROOT

OWN = ("schedule.steps=", "schedule.validation_every=", "schedule.checkpoints_kept=")
GIVEN = tuple(one for one in OVERRIDES if not one.startswith(OWN))


class Desk:
    def __init__(self, folder: Path) -> None:
        self.root, self.notes, self.out, self.told = (folder / name for name in ("runs", "notes", "out", "told"))
        self.notes.touch()

    def start(self, *given: str, stderr: int | None = None, **environment: str) -> "subprocess.Popen[bytes]":
        flags = [one for one in given if one == "-m"]
        rest = [one for one in given if one != "-m"]
        command = [sys.executable, str(ROOT / "tests/fixtures/standin_train.py"), *flags, *GIVEN, *rest]
        with self.out.open("wb") as out, self.told.open("wb") as told:
            return subprocess.Popen(
                [*command, f"run.root={self.root}"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(self.notes), **environment},
                stdout=out,
                stderr=told if stderr is None else stderr,
            )

    def wait_for(self, text: str, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + 60
        while text not in self.notes.read_text():
            assert process.poll() is None, self.told.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def run(self) -> Path:
        return next(self.root.glob("openhands_gspo-*"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_interrupted_update_is_finished_up_to_its_checkpoint_where_a_validation_is_due(desk: Desk) -> None:
    process = desk.start("schedule.steps=2", "schedule.validation_every=1", TRAIN_S="1")
    desk.wait_for("update 0", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "checkpoint version=000001" in desk.notes.read_text()


def test_an_interrupted_sweep_begins_no_further_point(desk: Desk) -> None:
    process = desk.start("-m", "schedule.steps=1", "schedule.validation_every=0", "seed=1,2", TRAIN_S="1")
    desk.wait_for("update 0", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert desk.notes.read_text().count("update 0") == 1


def test_a_reader_of_the_progress_that_goes_away_is_no_success(desk: Desk) -> None:
    reading, writing = os.pipe()
    process = desk.start("schedule.steps=2", "schedule.validation_every=0", stderr=writing)
    os.close(writing)
    desk.wait_for("train ", process)
    os.close(reading)
    code = process.wait(60)
    phase = json.loads((desk.run / "state.json").read_text())["phase"]
    assert (code, phase) == (0, "finished")  # or at least a code that is not 0


def test_validation_trials_are_of_the_weights_that_were_checkpointed(desk: Desk) -> None:
    given = ("schedule.steps=1", "schedule.validation_every=1", "schedule.concurrency=1")
    process = desk.start(*given, SICK="1", TRIAL_S="0.4")
    desk.wait_for("validation ", process)
    while not list(desk.run.glob("validation/*/*.parquet")):
        time.sleep(0.01)
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


def test_a_fixed_null_stands_beside_what_is_swept(desk: Desk) -> None:
    assert desk.start("-m", "seed=1,2", "schedule.checkpoints_kept=null", "job=show").wait(60) == 0, (
        desk.told.read_text()
    )


def test_a_shuffled_sweep_runs_the_points_that_it_names(desk: Desk) -> None:
    given = ("-m", "schedule.steps=1", "schedule.validation_every=0", "seed=shuffle(1,2,3,4,5)", "job=show")
    code = desk.start(*given).wait(120)
    named = [one.partition("seed=")[2] for one in desk.told.read_text().splitlines() if one.startswith("point ")]
    shown = [re.match(r"\W*seed: (\d+)  # command line", one) for one in desk.out.read_text().splitlines()]
    top = [
        found[1]
        for one, found in zip(desk.out.read_text().splitlines(), shown, strict=True)
        if found and one[:1] in "├└s"
    ]
    assert code == 2 or named == top
