"""A sweep from a command line to its table: checked whole, killed in its second point, resumed, one point failing."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guest_pieces import install_guest

from engine.config.schemas import ROOT


class Desk:
    """Where a person types commands of the guest's job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = install_guest(folder)

    def sweep(self, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "engine", "-m", "-cd", str(self.folder / "options"), "job=quick"]
        return subprocess.run(
            [*command, f"run.root={self.folder / 'runs'}", *overrides],
            cwd=ROOT,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def journal(self) -> list[str]:
        return (self.folder / "journal").read_text().splitlines()

    def record(self) -> tuple[Path, list[dict[str, Any]]]:
        (record,) = (self.folder / "runs" / "sweeps").iterdir()
        return record, json.loads((record / "summary.json").read_text())["points"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def column(points: list[dict[str, Any]], key: str) -> list[Any]:
    return [point[key] for point in points]


def test_three_points_killed_in_the_second_and_resumed(desk: Desk) -> None:
    killed = desk.sweep("seed=1,2,3", GUEST_DIES="1")
    assert killed.returncode == -signal.SIGKILL
    record, points = desk.record()
    assert column(points, "overrides") == ["seed=1", "seed=2", "seed=3"]
    assert column(points, "state") == ["finished", "running", "waiting"]
    assert desk.journal() == ["seed 1 step 0", "seed 1 step 1", "seed 2 step 0"]

    again = desk.sweep("seed=1,2,3")
    assert again.returncode == 0, again.stderr
    assert desk.journal() == [f"seed {seed} step {step}" for seed in (1, 2, 3) for step in (0, 1)], "nothing twice"
    assert again.stdout.count("this run is finished; run.fresh=true starts it anew") == 1
    assert [line for line in again.stderr.splitlines() if line.startswith("point")] == [
        f"point {number} of 3: seed={number}" for number in (1, 2, 3)
    ]
    same_record, points = desk.record()
    assert same_record == record
    assert column(points, "state") == ["finished"] * 3
    assert column(points, "exit_code") == [0] * 3
    assert column(points, "steps") == [2] * 3
    assert column(points, "reward_first") == [0.1, 0.2, 0.3]
    assert column(points, "reward_last") == [0.2, 0.4, 0.6]
    directories = [Path(directory) for directory in column(points, "directory")]
    assert len({directory.resolve() for directory in directories}) == 3
    assert all((directory / "config.yaml").is_file() for directory in directories)
    table = (record / "summary.txt").read_text()
    assert again.stdout.endswith(f"{table}{record}\n")
    assert table.splitlines()[1].split() == ["seed=1", "finished", "0", "2", "0.100", "0.200", str(directories[0])]


def test_a_point_that_fails_is_told_at_once_and_the_others_run(desk: Desk) -> None:
    done = desk.sweep("seed=4,1")
    assert done.returncode == 3
    assert "as asked" in done.stderr
    record, points = desk.record()
    assert column(points, "state") == ["failed", "finished"]
    assert column(points, "exit_code") == [3, 0]
    assert column(points, "reward_first") == [None, 0.1]
    first, second = done.stdout.split("overrides")[1:]
    assert [line.split()[:2] for line in first.splitlines()[1:]][:2] == [["seed=4", "failed"], ["seed=1", "waiting"]]
    assert f"overrides{second}" == f"{(record / 'summary.txt').read_text()}{record}\n"


def test_a_fixed_null_stands_beside_what_is_swept(desk: Desk) -> None:
    done = desk.sweep("seed=1,3", "schedule.checkpoints_kept=null")
    assert done.returncode == 0, done.stderr
    assert column(desk.record()[1], "state") == ["finished", "finished"]


REFUSED = {
    "a value": (["seed=1,-2"], ["seed=-2: out of range; "]),
    "an option of a group": (["schedule=laptop,labtop"], ["schedule='labtop': unknown option; did you mean laptop?"]),
    "what spans keys": (
        ["schedule.rollouts_per_prompt=8,1"],
        ["schedule.rollouts_per_prompt=1: a group of one has no"],
    ),
    "what spans groups": (
        ["schedule=laptop,proof", "train.mini_batches=20"],
        ["train.mini_batches=20: more than the 16 trajectories of a step (in schedule=proof); set it to at most 16"],
    ),
    "the machine": (["seed=1,13,2"], ["guest='luck': there is none (in seed=13); take another seed"]),
    "one run twice": (
        ["observe.tensorboard=true,false"],
        ["run.name='openhands_gspo-", "the points observe.tensorboard=true and observe.tensorboard=false are one run"],
    ),
    "one directory twice": (
        ["seed=1,2", "run.name=mine"],
        ["run.name='mine': the points seed=1 and seed=2 would share this directory; set run.name=null"],
    ),
    "a key": (["schedule.stepz=1,2"], ["schedule.stepz=1: unknown key; did you mean schedule.steps?"]),
    "a group": (["nosuch=a,b"], ["nosuch='a': unknown key or group; allowed: algorithm, "]),
    "an option of the job": (["seed=1,2", "job.jurnal=3"], ["job.jurnal=3: unknown key; did you mean job.journal?"]),
    "a name that is taken": (
        ["seed=1,2", "run.name=sweeps"],
        ["run.name='sweeps': is the folder of the sweeps'"],
    ),
    "what draws": (["seed=shuffle(1,2,3)"], ["seed='shuffle(1,2,3)': shuffle draws another order at each call"]),
    "a point twice": (["seed=1,1"], ["seed='1': names one point twice; give each value once"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_point_keeps_the_first_from_starting(desk: Desk, case: str) -> None:
    overrides, parts = REFUSED[case]
    done = desk.sweep(*overrides)
    assert done.returncode == 2, done.stdout
    for part in parts:
        assert part in done.stderr
    assert done.stdout == ""
    assert not (desk.folder / "runs").exists()
    assert not (desk.folder / "journal").exists()


def test_a_sweep_of_a_directory_that_holds_another_run_is_refused(desk: Desk) -> None:
    assert desk.sweep("seed=1", "run.name=mine").returncode == 0
    done = desk.sweep("seed=2", "run.name=mine")
    assert done.returncode == 2
    assert "mine holds a run with seed=1, this one has 2; set another run.name" in done.stderr
