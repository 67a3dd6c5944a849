"""The main job on the real parts: OpenHands in sandboxes, vLLM, release pairs, grading, GSPO, weights back."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rewarded_run import EverySecondOne
from whole_runs import processes_naming

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.records import StepRecord
from engine.run.jobs.train import TrainJob
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.ui.tokens import tokens_page

ROOT = Path(__file__).parents[2]
SMALL = (
    "experiment=openhands_gspo",
    "model=tiny_qwen3_moe",
    "tasks=release_pairs",
    "schedule=proof",
    "schedule.steps=1",
    "schedule.prompts_per_step=1",
    "schedule.rollouts_per_prompt=2",
    "schedule.validation_every=1",
    "schedule.validation_prompts=1",
    "proxy.max_tokens_per_turn=32",
    "train.mini_batches=1",
)


def command(root: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "engine", *SMALL, f"run.root={root}", *overrides]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """What the run mounts is built (minutes, once per machine)."""
    subprocess.run([*command(Path("runs")), "job=prepare"], cwd=ROOT, check=True, timeout=1200)


def run(root: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    """Run to the end; the run's directory (the last line) and its summary."""
    done = subprocess.run(
        command(root, *overrides), cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=900, check=False
    )
    assert done.returncode == 0
    directory = ROOT / done.stdout.splitlines()[-1]
    return directory, json.loads((directory / "summary.json").read_text())


def assert_faithful(summary: dict[str, Any], trials: int) -> None:
    """Every trial kept, trained ids = sampled ids, and rollout and trainer agree."""
    assert summary["trials"] == {"started": trials, "kept": trials, "excluded": {}}
    assert summary["tokens"]["sampled"] == summary["tokens"]["trained"] > 0
    assert summary["alignment"]["pearson_r_median"] >= 0.9999
    assert summary["alignment"]["max_abs_dlogp"] <= 1e-3
    assert {"setup", "agent", "extract", "grade", "first_request"} <= set(summary["stages"])
    assert summary["wall_s"] > 0


def test_a_step_in_bubblewrap_interrupted_and_resumed(tmp_path: Path) -> None:
    first = subprocess.Popen(command(tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 600
        while not (finished := list(tmp_path.glob("*/trajectories/step=000000/*.parquet"))):
            assert first.poll() is None, "the run ended before its first trial"
            assert time.monotonic() < deadline
            time.sleep(0.2)
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=120) == 130
    finally:
        first.kill()
        first.wait()
    written = {path: path.stat().st_mtime_ns for path in finished}
    (state,) = tmp_path.glob("*/state.json")
    assert json.loads(state.read_text())["phase"] == "interrupted"
    assert processes_naming(str(tmp_path)) == []

    directory, summary = run(tmp_path)
    assert summary["steps"] == 1
    assert_faithful(summary, trials=3)
    assert {path: path.stat().st_mtime_ns for path in finished} == written
    assert Layout(root=directory).checkpoint(1).is_dir()
    assert (directory / "config.yaml").is_file()
    assert not (directory / "scratch").exists()
    assert processes_naming(str(tmp_path)) == []

    again = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0
    assert "this run is finished" in again.stdout

    regraded = subprocess.run(
        command(tmp_path, "job=regrade", "job.times=2"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert regraded.returncode == 0, regraded.stderr
    first_line, last_line = regraded.stdout.splitlines()
    assert first_line.startswith("3 trials, ") and first_line.endswith(" different patches, graded 2 × each")
    assert last_line == "all verdicts are what they were"


@pytest.mark.podman
def test_a_step_in_podman(tmp_path: Path) -> None:
    _, summary = run(tmp_path, "sandbox=podman", "schedule.validation_every=0")
    assert_faithful(summary, trials=2)


def test_two_updates_change_the_weights_in_trainer_and_engine_alike(tmp_path: Path) -> None:
    overrides = (*SMALL, f"run.root={tmp_path}", "schedule.steps=2", "schedule.validation_every=0")
    built = assemble(compose([*overrides, "train.learning_rate=1e-2", "observe.tensorboard=false"]))
    built = dataclasses.replace(built, verify=EverySecondOne(built.verify))
    assert asyncio.run(TrainJob().run(built)) == 0
    steps = Reader(Layout(root=built.directory)).steps()
    assert [record.metrics["reward/mean"] for record in steps] == [0.5, 0.5]
    for record in steps:
        assert record.metrics["train/grad_norm"] > 0
        assert record.metrics["probe/max_abs_dlogp"] <= 1e-3
        assert record.metrics["alignment/pearson_r"] >= 0.9999
        assert record.metrics["alignment/max_abs_dlogp"] <= 1e-3
    # the second step's tokens were sampled by updated weights, and the trainer's agree with them
    assert steps[1].metrics["alignment/tokens"] == steps[1].metrics["tokens/trained"]
    for record in steps:
        assert_every_trained_token_can_be_looked_at(built.directory, record)


def assert_every_trained_token_can_be_looked_at(directory: Path, record: StepRecord) -> None:
    """With its text and both log-probabilities, which differ as the step's metrics say."""
    gaps = []
    for name in Reader(Layout(root=directory)).trials(record.step, "train"):
        asked = {"run": directory.name, "step": str(record.step), "trial": name, "only": "sampled"}
        page = tokens_page(directory.parent, asked)
        assert (page["why_no_texts"], page["why_not_recomputed"]) == ("", "")
        assert all(token["text"] for token in page["tokens"])
        gaps += [abs(token["gap"]) for token in page["tokens"] if token["target"]]
    assert len(gaps) == record.metrics["tokens/trained"]
    assert max(gaps) == pytest.approx(record.metrics["alignment/max_abs_dlogp"], rel=1e-6)
