"""`experiment=image_delivery` for real, on an image of a shell: what is measured, told of the rest, and left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness_pieces import ROOT, make_runtime, task_image
from registry_pieces import skip_without_registry, small_root

from engine.sandbox.images import DebianImageStore

pytestmark = pytest.mark.podman


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which the tasks' image is a small root."""
    skip_without_registry()
    missing = make_runtime().problems()
    if missing:
        pytest.skip(f"this machine cannot run sandboxes: {missing[0]}")
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    place = DebianImageStore().path(task_image())
    place.parent.mkdir(parents=True)
    (small_root(place) / ".complete").write_text("{}")
    return tmp_path / "cache"


def engine(tmp_path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    given = ["experiment=image_delivery", "model=tiny_qwen3_moe", "run.root=runs", "run.name=here", *overrides]
    return subprocess.run(
        [sys.executable, "-m", "engine", *given],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow  # four modes, two images each: a minute on a busy machine
def test_all_modes(tmp_path: Path, cache: Path) -> None:
    before = sorted(path.name for path in (cache / "images").iterdir())
    done = engine(tmp_path, "job.pairs=1", "job.changed=0.2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "runs/here/reports/delivery.html"
    assert lines[-2].startswith("Not here: estargz, nydus: ")
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-2]}
    assert list(rows) == ["local", "gzip", "zstd", "zstd:chunked", "estargz", "nydus"]
    assert rows["nydus"][:2] == ["not", "here"]
    measured = json.loads((tmp_path / "runs/here/reports/delivery.json").read_text())["measured"]
    (local,), (gzip,), (chunked,) = (measured[mode] for mode in ("local", "gzip", "zstd:chunked"))
    assert local["first"]["network_bytes"] == local["first"]["disk_bytes"] == 0 < local["read_mb_s"]
    assert gzip["first"]["network_bytes"] > 500_000 and gzip["first"]["disk_bytes"] > gzip["first"]["network_bytes"]
    # that much the two images have in common
    assert chunked["second"]["network_bytes"] < gzip["second"]["network_bytes"] * 0.9
    page = (tmp_path / "runs/here/reports/delivery.html").read_text()
    assert "Start-up latency" in page and "no snapshotter" in page
    assert sorted(path.name for path in (cache / "images").iterdir() if path.name != ".layers") == before
    assert not list(cache.glob(".lego-rl-*"))


def test_what_is_missing_is_told_before_anything_starts(tmp_path: Path, cache: Path) -> None:
    (DebianImageStore().path(task_image()) / ".complete").unlink()
    done = engine(tmp_path)
    assert done.returncode == 2
    assert (
        "tasks (image task-base)='task-base': is not built here; run the same command with job=prepare" in done.stderr
    )
    assert not (tmp_path / "runs").exists()
    done = engine(tmp_path, "job.modes=[nydus]")
    assert done.returncode == 2
    assert done.stderr.startswith("job.modes=['nydus']: sandboxes of this machine have no snapshotter")
