"""A whole run on the real parts, reproduced from its directory on another clone: same configuration, same first-step
prompts, and at temperature 0 the same trajectories to the token."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from engine.config.schemas import ROOT

pytestmark = pytest.mark.slow
SMALL = (
    "experiment=mini_swe_agent_gspo",
    "model=tiny_qwen3_moe",
    "tasks=release_pairs",
    "schedule=proof",
    "schedule.steps=1",
    "schedule.prompts_per_step=2",
    "schedule.rollouts_per_prompt=2",
    "schedule.validation_first=true",
    "schedule.validation_every=0",
    "schedule.validation_prompts=2",
    "schedule.validation_temperature=0",
    "proxy.max_tokens_per_turn=32",
    "train.mini_batches=1",
)


def clone(target: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache", "tests")
    return Path(shutil.copytree(ROOT, target, ignore=ignored))


def engine(place: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "engine", *overrides],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def trials(run: Path, split: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """(Task, sample) → exchanges of the trials before the first update."""
    rows = [pq.read_table(path).to_pylist()[0] for path in sorted((run / split / "step=000000").glob("*.parquet"))]
    return {(row["task"], row["sample"]): row["exchanges"] for row in rows}


def test_a_run_from_its_directory_on_another_clone(tmp_path: Path) -> None:
    first, second = clone(tmp_path / "first"), clone(tmp_path / "second")
    engine(first, *SMALL, "job=prepare")
    run = first / engine(first, *SMALL).stdout.splitlines()[-1]

    done = engine(second, f"from={run}")
    again = second / done.stdout.splitlines()[-1]
    assert f"running {run / 'config.yaml'} again: nothing differs here" in done.stderr
    assert again.relative_to(second) == run.relative_to(first)
    old, new = (yaml.safe_load((folder / "config.yaml").read_text()) for folder in (run, again))
    assert new == {**old, "command_line": [f"from={run}"]}

    before, after = trials(run, "trajectories"), trials(again, "trajectories")
    assert len(before) == 4
    assert {key: one[0]["prompt_ids"] for key, one in before.items()} == {
        key: one[0]["prompt_ids"] for key, one in after.items()
    }
    likeliest, again_likeliest = trials(run, "validation"), trials(again, "validation")
    assert len(likeliest) == 2
    assert all(len(exchanges) > 1 for exchanges in likeliest.values())
    for key, exchanges in likeliest.items():
        streams = [
            [(one["prompt_ids"], one["sampled_ids"]) for one in side] for side in (exchanges, again_likeliest[key])
        ]
        assert streams[0] == streams[1], key

    finished = engine(first, f"from={run.relative_to(first)}")
    assert "this run is finished; run.fresh=true starts it anew" in finished.stdout
