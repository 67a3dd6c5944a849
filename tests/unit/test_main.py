"""Exit codes of the command line: signals end a run in order, a full disk is no defect, a defect says where to look."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import __main__ as program
from engine.config.schemas import ROOT
from engine.core import ending
from engine.core.errors import NoTrainableToken, RunError

WAITING = """
import asyncio, sys
from types import SimpleNamespace
from engine import __main__ as program
async def run(built):
    print("ready", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("tidied", flush=True)
program.assemble = lambda composed: SimpleNamespace(job=SimpleNamespace(run=run))
program.run_command = lambda arguments, execute: execute(None)
sys.exit(program.main([]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_in_order(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("tidied\n", "stopping\ninterrupted; the same command goes on\n")
    assert process.returncode == program.INTERRUPTED


DRAINABLE = """
class Job:
    def __init__(self): self.asked = asyncio.Event()
    def drain(self):
        self.asked.set()
        return "starting" not in sys.argv
    async def run(self, built):
        print("ready", flush=True)
        try:
            await self.asked.wait()
            print("draining", flush=True)
            if "waits" in sys.argv: await asyncio.sleep(600)
        finally:
            print("tidied", flush=True)
        from engine.core.errors import Interrupted
        raise Interrupted("as asked")
program.assemble = lambda composed: SimpleNamespace(job=Job())
"""


def test_the_first_signal_drains_a_job_that_can_and_the_second_stops_it() -> None:
    script = WAITING.replace("program.run_command", DRAINABLE + "program.run_command")
    for waits in (False, True):
        command = [sys.executable, "-c", script, *(["waits"] if waits else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "draining\n"
        if waits:
            process.send_signal(signal.SIGTERM)
        lines = ["finishing what is running; once more stops it", *(["stopping"] if waits else [])]
        told = "\n".join([*lines, "interrupted; the same command goes on", ""])
        with process:
            assert process.stderr is not None
            assert (process.stdout.read(), process.stderr.read()) == ("tidied\n", told)
        assert process.returncode == program.INTERRUPTED


def test_a_run_that_a_script_started_in_the_background_can_be_ended() -> None:
    ignoring = [sys.executable, "-c", "import signal; signal.signal(2, signal.SIG_IGN)" + WAITING]
    process = subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("tidied\n", "stopping\ninterrupted; the same command goes on\n")
    assert process.returncode == program.INTERRUPTED


def test_a_job_that_has_nothing_to_finish_yet_is_stopped_by_the_first_signal() -> None:
    script = WAITING.replace("program.run_command", DRAINABLE + "program.run_command")
    command = [sys.executable, "-c", script, "starting", "waits"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=60)
    assert (out.splitlines()[-1], told) == ("tidied", "stopping\ninterrupted; the same command goes on\n")
    assert process.returncode == program.INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["between two jobs", "within the second, which ends all the same"])
def test_a_signal_is_heard_whichever_event_loop_is_over(number: signal.Signals, when: str) -> None:
    """asyncio takes its handlers back with each loop; there is one a point of a sweep."""
    script = """
import sys, time
from types import SimpleNamespace
from engine import __main__ as program
async def run(built):
    if sys.argv[1] != "between two jobs" and done: wait()
    return 0
def wait():
    print("ready", flush=True)
    time.sleep(2)
done = []
program.assemble = lambda composed: SimpleNamespace(job=SimpleNamespace(run=run))
def jobs(arguments, runner):
    for number in range(3):
        print("code", runner(None), flush=True)
        done.append(number)
        if sys.argv[1] == "between two jobs" and number: wait()
    return 0
program.run_command = jobs
sys.exit(program.main([]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, when], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(number)
    with process:
        assert process.stderr is not None
        out, told = process.stdout.read(), process.stderr.read()
    assert told.endswith("interrupted; the same command goes on\n")
    assert process.returncode == program.INTERRUPTED
    assert out.count("code 0") == (0 if when == "between two jobs" else 1), "the third is not begun"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_amid_the_imports_is_answered(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").write_text("""
import time
print("importing", flush=True)
try: time.sleep(60)
except BaseException: print("swallowed", flush=True)
""")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "job=show"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", "interrupted; the same command goes on\n")
    assert process.returncode == program.INTERRUPTED


def test_what_nohup_ignores_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, object] = {signal.SIGHUP: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    monkeypatch.setattr(ending.signal, "getsignal", handlers.get)
    monkeypatch.setattr(ending.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(program, "run_command", lambda arguments, execute: 0)
    assert program.main([]) == 0
    assert handlers[signal.SIGHUP] is signal.SIG_IGN
    assert handlers[signal.SIGTERM] is not signal.SIG_DFL


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RunError("as told"), "as told"),
        (NoTrainableToken("step 5: 0 kept and 8 excluded"), "step 5: 0 kept and 8 excluded"),
        (OSError(errno.ENOSPC, "No space left on device", "/d/x"), "/d/x cannot be written: No space left on device;"),
        (MemoryError(), "there is not enough memory (MemoryError); end other programs, or lower train.micro_batch_tok"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
            "there is not enough memory ([enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate mem",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is not enough memory ([Errno 12] Cannot allocate"),
        (ZeroDivisionError("a\nb"), "ZeroDivisionError: a b (a defect of the program; traceback in "),
    ],
)
def test_a_failed_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    async def run(built: Any) -> int:
        raise error

    made = SimpleNamespace(job=SimpleNamespace(run=run), directory=tmp_path)
    monkeypatch.setattr(program, "assemble", lambda composed: made)
    assert program.execute(None) == 3  # type: ignore[arg-type]
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(line)
