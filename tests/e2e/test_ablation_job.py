"""`job=ablation` for real, on its quickest part: what it installs is installed, and the cache is as it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness_pieces import ROOT, make_runtime

from engine.core.paths import cache_dir


def listing() -> list[str]:
    return sorted(path.name for path in (cache_dir() / "images").iterdir() if not path.name.startswith("."))


def test_the_toolchain(tmp_path: Path) -> None:
    missing = make_runtime().problems()
    if missing:
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    before = listing()
    overrides = ["experiment=sandbox_ablation", "sandbox=bubblewrap", "model=tiny_qwen3_moe", f"run.root={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "engine", *overrides, "job.parts=[toolchain]", "job.pairs=1"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "image grader: built in" in done.stderr
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"packaged grading toolchain \(pytest\) +([\d.]+) s +([\d.]+) s +(\d+) ×", last)
    assert found and float(found[1]) < float(found[2])
    assert listing() == before and not list(tmp_path.iterdir())
