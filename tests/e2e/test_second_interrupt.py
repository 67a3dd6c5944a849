"""Ctrl-C twice while a thread works: the run's directory is held, and no end is told, until the thread is over.

Needs what `whole_runs.prepare` builds."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from whole_runs import OVERRIDES, ROOT

OWN = ("schedule.steps=", "schedule.validation_every=")
GIVEN = (*(one for one in OVERRIDES if not one.startswith(OWN)), "schedule.steps=2", "schedule.validation_every=0")


def start(folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(ROOT / "tests/fixtures/standin_train.py"), *GIVEN, f"run.root={folder / 'runs'}"]
    with (folder / "told").open("ab") as told:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(folder / "notes"), **environment},
            stdout=told,
            stderr=told,
        )


def wait_for(words: str, file: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not file.exists() or words not in file.read_text():
        assert process.poll() is None and time.monotonic() < deadline, file.parent.joinpath("told").read_text()
        time.sleep(0.01)


def held(run: Path) -> bool:
    with (run / "lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_directory_is_held_until_the_updates_thread_is_over(tmp_path: Path) -> None:
    process = start(tmp_path, TRAIN_S="3")
    wait_for("update 0", tmp_path / "notes", process)
    over = time.monotonic() + 2  # the stand-in sleeps longer, and cannot be woken
    (run,) = (tmp_path / "runs").glob("openhands_gspo-*")
    process.send_signal(signal.SIGINT)
    wait_for("once more stops it", tmp_path / "told", process)
    process.send_signal(signal.SIGINT)
    wait_for("\nstopping\n", tmp_path / "told", process)  # answered at once
    while time.monotonic() < over:
        assert held(run)
        assert json.loads((run / "state.json").read_text())["phase"] == "train"
        time.sleep(0.05)
    assert process.wait(60) == 130
    assert json.loads((run / "state.json").read_text())["phase"] == "interrupted"
    assert not held(run)
