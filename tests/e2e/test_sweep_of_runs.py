"""A sweep of three real runs, killed whole in its second point: the same command finishes it and does nothing twice."""

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from whole_runs import STEPS, kill_all, prepare, processes_naming, start, whole

from engine.store.layout import Layout
from engine.store.state import read_state

pytestmark = pytest.mark.slow

SWEPT = "algorithm.clip_high=4e-4,8e-4,1e-3"
POINTS = [f"algorithm.clip_high={value}" for value in ("0.0004", "0.0008", "0.001")]


def record(root: Path) -> tuple[Path, list[dict[str, Any]]]:
    (folder,) = (root / "sweeps").iterdir()
    return folder, json.loads((folder / "summary.json").read_text())["points"]


def column(points: list[dict[str, Any]], key: str) -> list[Any]:
    return [point[key] for point in points]


def contents(folder: Path) -> dict[Path, tuple[int, str]]:
    """Every file but the lock, which each start writes its process into: when it was written, and what it holds."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "lock"]
    return {file: (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files}


def wait_for_the_second(process: "subprocess.Popen[bytes]", root: Path) -> Path:
    """The directory of the second point, once that samples the trials of its second step."""
    deadline = time.monotonic() + 1800
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        if not list(root.glob("sweeps/*/summary.json")):
            continue
        second = record(root)[1][1]
        state = read_state(Layout(root=Path(second["directory"]))) if second["state"] == "running" else None
        if state and (state["phase"], state["step"]) == ("rollout", 1):
            return Path(second["directory"])
    pytest.fail(f"the second point never came to its second step: {(root.parent / 'log.txt').read_text()[-3000:]}")


@pytest.fixture
def root(tmp_path: Path, short_tmp: Path) -> Path:
    prepare()
    return tmp_path / "runs"


def test_three_points_killed_in_the_second_and_resumed(root: Path) -> None:
    log = root.parent / "log.txt"
    process = start(root, "-m", SWEPT)
    try:
        second = wait_for_the_second(process, root)
        time.sleep(1.5)
    finally:
        kill_all(process)
    place, points = record(root)
    assert column(points, "overrides") == POINTS
    assert column(points, "state") == ["finished", "running", "waiting"]
    first = whole(Path(points[0]["directory"])).root
    kept = contents(first)
    trials = contents(second / "trajectories").items()
    of_second = {file: facts for file, facts in trials if file.suffix == ".parquet"}
    assert of_second
    told = log.stat().st_size

    again = start(root, "-m", SWEPT)
    try:
        code = again.wait(timeout=1800)
    finally:
        kill_all(again)
    words = log.read_bytes()[told:].decode()
    assert code == 0, words[-3000:]
    assert contents(first) == kept, "the first point is left as it was"
    assert words.count("this run is finished; run.fresh=true starts it anew") == 1
    assert words.count(f"resuming at step 2/{STEPS} from checkpoint 1") == 1
    after = contents(second / "trajectories")
    assert {file: after.get(file) for file in of_second} == of_second, "no trial of the second point is run twice"
    assert [line for line in words.splitlines() if line.startswith("point ")] == [
        f"point {number} of 3: {name}" for number, name in enumerate(POINTS, 1)
    ]

    same_place, points = record(root)
    assert same_place == place
    assert column(points, "state") == ["finished"] * 3
    assert column(points, "exit_code") == [0] * 3
    assert column(points, "steps") == [STEPS] * 3
    assert None not in column(points, "reward_first") + column(points, "reward_last")
    directories = [Path(directory) for directory in column(points, "directory")]
    assert len(set(directories)) == 3
    for directory in directories:
        whole(directory)
    table = (place / "summary.txt").read_text()
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [[name, "finished"] for name in POINTS]
    assert table in words
    assert list(Path(os.environ["TMPDIR"]).glob("lego-rl-*")) == []
    assert processes_naming(str(root)) == []
    print(table)
