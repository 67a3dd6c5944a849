"""Killed at any moment, the same command completes the run: nothing lost or done twice, the same weights to the bit."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from whole_runs import (
    OVERRIDES,
    ROOT,
    STEPS,
    complete,
    directory,
    kill_all,
    prepare,
    processes_naming,
    start,
    trained_again,
    tree,
)

from engine.store.layout import Layout
from engine.store.ledger import read_ledger
from engine.store.state import read_state

pytestmark = pytest.mark.slow

MOMENTS = (
    "starting",
    "rollout",
    "train",
    "sync",
    "checkpoint",
    "rollout",
    "train",
    "checkpoint",
    "rollout",
    "validation",
)
"""Where each kill strikes; exactly when within it is drawn."""


def phase(root: Path) -> str:
    folder = directory(root)
    state = read_state(Layout(root=folder)) if folder else None
    return state["phase"] if state else ""


def wait_for(moment: str, process: "subprocess.Popen[bytes]", root: Path) -> bool:
    """Whether the run came to that phase; a run that ended before did not."""
    deadline = time.monotonic() + 300
    while phase(root) != moment:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, f"the run never came to {moment}, it is in {phase(root)}"
        time.sleep(0.005)
    return True


@pytest.fixture(scope="module")
def prepared() -> None:
    prepare()


@pytest.fixture
def root(tmp_path: Path, prepared: None, short_tmp: Path) -> Path:
    """Where the runs lie."""
    return tmp_path / "runs"


def test_ten_kills_lose_nothing_and_train_nothing_twice(root: Path) -> None:
    draw = random.Random(20)
    struck: Counter[str] = Counter()
    for moment in MOMENTS:
        process = start(root)
        try:
            if wait_for(moment, process, root):
                time.sleep(draw.uniform(0, 3.0 if moment in ("starting", "rollout", "validation") else 0.3))
                struck[phase(root)] += 1
        finally:
            kill_all(process)
    assert sum(struck.values()) >= 8, struck
    last = start(root)
    assert last.wait(timeout=600) == 0, (root.parent / "log.txt").read_text()[-3000:]
    layout = complete(root)
    trained_again(layout)
    reaped = subprocess.run(
        [sys.executable, "-m", "engine", *OVERRIDES, f"run.root={root}", "job=reap"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "removed sandbox" not in reaped.stdout, reaped.stdout
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []
    assert processes_naming(str(root)) == []
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    print(f"struck {dict(struck)}; {(layout.root / 'summary.json').read_text()}")


def test_an_engine_that_is_killed_three_times_is_started_again(root: Path) -> None:
    process = start(root)
    try:
        for moment in ("rollout", "sync", "rollout"):
            assert wait_for(moment, process, root)
            time.sleep(0.5 if moment == "rollout" else 0)
            servers = [pid for pid in tree(process.pid) if b"vllm.entrypoints" in cmdline(pid) and is_server(pid)]
            assert servers
            os.kill(servers[-1], signal.SIGKILL)
            while phase(root) == moment and process.poll() is None:
                time.sleep(0.02)
        assert process.wait(timeout=600) == 0, (root.parent / "log.txt").read_text()[-3000:]
    finally:
        kill_all(process)
    log = (root.parent / "log.txt").read_text()
    assert "starting it again (3 of 5)" in log, log[-3000:]
    layout = complete(root)
    trained_again(layout)
    for step in range(STEPS):
        for (split, trial), state in read_ledger(layout, step).items():
            if state == "excluded":
                assert "engine_error" in layout.ledger(step).read_text(), (split, trial)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_server(pid: int) -> bool:
    return b"supervise.py" not in cmdline(pid)
