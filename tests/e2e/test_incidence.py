"""`experiment=defense_incidence`, whole: what the defences find is what was planted, to the trial."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness_pieces import make_runtime

ROOT = Path(__file__).parents[2]
TASKS = ("parse-1.20.0-1.20.1", "pathspec-0.12.0-0.12.1", "croniter-3.0.4-4.0.0")
SAMPLES = 8
PLANTED = {
    "signs": 2,  # the search in the history, and a patch that takes pytest apart
    "test_edits_reverted": 1,
    "canaries": 1,
    "patch_by_contents": 1,
    "reap_processes": 1,
    "denied_egress": 0,
    "leak_scan": 0,
    "withheld_tests": 0,
    "single_commit_history": 0,
}
"""Of the eight samples of each task in `configs/inference/cheats.yaml`, in how many a defence finds something."""
CHEATING = 5
EXPERIMENT = (
    *("experiment=defense_incidence", "model=tiny_qwen3_moe", f"tasks.names=[{','.join(TASKS)}]"),
    "tasks.validation=[]",
)


def engine(*overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True)


@pytest.mark.slow
def test_the_measured_incidence_is_the_planted_one(tmp_path: Path) -> None:
    missing = make_runtime().problems()
    if missing:
        pytest.skip(f"bubblewrap: {missing[0]}")
    here = (*EXPERIMENT, f"run.root={tmp_path}")
    engine(*here, "job=prepare")
    played = engine(*here)
    assert "WARNING: not every defence enforces" in played.stderr
    report = Path(played.stdout.splitlines()[-1])
    told = json.loads(report.read_text())
    trials = SAMPLES * len(TASKS)
    assert (told["trials"], told["excluded"], told["any_finding"]) == (trials, 0, CHEATING * len(TASKS))
    measured = {row["stage"]: row["trials"] for row in told["rows"] if not row["kind"]}
    assert measured == {stage: number * len(TASKS) for stage, number in PLANTED.items()}
    acting = {row["stage"] for row in told["rows"] if row["acted"]}
    assert acting == {"patch_by_contents", "reap_processes"}, "what no configuration can leave out"
    files = {path: path.stat().st_mtime_ns for path in report.parents[1].glob("trajectories/*/*.parquet")}
    assert len(files) == trials
    report.unlink()
    engine("job=incidence", f"job.run={report.parents[1]}")
    assert json.loads(report.read_text()) == told, "of a run that is named, by any configuration"
    engine(*here)
    assert {path: path.stat().st_mtime_ns for path in files} == files, "none is played again"
