"""Where a run or a sweep is when it is asked to end decides what is still finished. Whole commands, with stand-ins."""

import json
import signal
from pathlib import Path

import pytest
from standin_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_in_a_point_s_last_step_that_point_is_finished_and_no_other_begun(desk: Desk) -> None:
    given = ("-m", "schedule.steps=1", "seed=1,2")
    process = desk.start(*given, TRAIN_S="1")
    desk.wait_for("update 0", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert desk.noted("update 0") == 1
    assert desk.state()["phase"] == "finished"
    (summary,) = (desk.root / "sweeps").glob("*/summary.json")
    assert [one["state"] for one in json.loads(summary.read_text())["points"]] == ["finished", "waiting"]
    assert desk.told.read_text().endswith("interrupted; the same command goes on\n")
    assert desk.start(*given).wait(120) == 0
    assert desk.noted("update 0") == 2
    assert [one["state"] for one in json.loads(summary.read_text())["points"]] == ["finished", "finished"]


def test_while_it_starts_there_is_nothing_to_finish(desk: Desk) -> None:
    process = desk.start("schedule.steps=1", START_S="600")
    desk.wait_for("starting", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert desk.state()["phase"] == "interrupted"
    assert desk.told.read_text().endswith("stopping\ninterrupted; the same command goes on\n")
