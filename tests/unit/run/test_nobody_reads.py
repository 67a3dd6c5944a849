"""A run outlives whoever reads its words: a pipe's reader, a terminal. Whole commands, with stand-ins."""

import os
import pty
import sys
from pathlib import Path

import pytest
from standin_desk import Desk

SESSION = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
if sys.argv[1] == "ignored": signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The terminal at standard error becomes the process's own, so that the kernel tells it of the end."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_run_goes_on_when_the_reader_of_its_progress_goes_away(desk: Desk) -> None:
    reading, writing = os.pipe()
    process = desk.start("schedule.steps=2", stderr=writing)
    os.close(writing)
    desk.wait_for("train ", process)
    os.close(reading)
    assert process.wait(120) == 0
    assert desk.state()["phase"] == "finished"
    assert desk.out.read_text().splitlines()[-1] == str(desk.run)


def test_a_run_whose_standard_error_is_closed_writes_its_words_nowhere(desk: Desk) -> None:
    process = desk.start("schedule.steps=1", shell=["sh", "-c", 'exec "$@" 2>&-', "sh"])
    assert process.wait(120) == 0
    assert desk.state()["phase"] == "finished"
    for file in desk.run.rglob("*"):
        assert not file.is_file() or b"] step 1/1" not in file.read_bytes(), file


@pytest.mark.parametrize("hangup", ["heard", "ignored"])
def test_a_terminal_that_is_gone_ends_a_run_in_order_unless_nohup_has_it_ignored(desk: Desk, hangup: str) -> None:
    master, terminal = pty.openpty()
    process = desk.start(
        "schedule.steps=2", stderr=terminal, shell=[sys.executable, "-c", SESSION, hangup], TRAIN_S="1"
    )
    os.close(terminal)
    desk.wait_for("update 0", process)
    os.close(master)
    code = process.wait(120)
    assert (code, desk.state()["phase"]) == ((130, "interrupted") if hangup == "heard" else (0, "finished"))
    assert desk.noted("checkpoint version=000001") == 1
    assert desk.noted("update 1") == (0 if hangup == "heard" else 1)


def test_a_sweep_s_table_that_nobody_reads_keeps_no_point_from_running(desk: Desk) -> None:
    process = desk.start(
        *("-m", "schedule.steps=1", "seed=1,2"),
        shell=["bash", "-c", 'set -o pipefail; "$@" | head -0', "bash"],
    )
    assert process.wait(120) == 0
    assert desk.noted("update 0") == 2
