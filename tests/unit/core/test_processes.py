"""Host commands end whole: with their caller, with a cancellation, and after the caller's `kill -9`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.processes import run_checked, run_logged

# As pip does: a child that works on by itself; and as a daemon does: one in a session of its own, its parent gone.
FAMILY = """
import os, subprocess, sys, time
folder, ends = sys.argv[1:]
sleeper = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", sleeper, folder + "/child"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", sleeper, folder + "/daemon"])
    os._exit(0)
print("begun", flush=True)
while ends == "no" or not all(os.path.exists(folder + name) for name in ("/child", "/daemon")):
    time.sleep(0.01)
os.closerange(1, 3)
os._exit(3)
"""
CALLER = """
import asyncio, os, pathlib, sys
from engine.core import processes
async def main():
    log, how, *command = sys.argv[1:]
    if how == "run_checked":
        await processes.run_checked(command)
    else:
        await processes.run_logged(command, environment=os.environ, log=pathlib.Path(log), on_line=print)
asyncio.run(main())
"""


def family(folder: Path, ends: str) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(folder), ends]


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came true")


def begun(folder: Path) -> bool:
    return all((folder / name).exists() and (folder / name).read_text() for name in ("child", "daemon"))


def gone(folder: Path) -> bool:
    return not any(alive((folder / name).read_text()) for name in ("child", "daemon"))


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["run_checked", "run_logged"])
def test_nothing_of_a_command_outlives_a_caller_that_is_killed(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", CALLER, str(tmp_path / "log"), how, *family(tmp_path, "no")]
    caller = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: begun(tmp_path))
        assert not gone(tmp_path)
    finally:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    until(lambda: gone(tmp_path))


async def test_nothing_of_a_command_outlives_its_cancellation(tmp_path: Path) -> None:
    running = asyncio.create_task(run_checked(family(tmp_path, "no")))
    await asyncio.to_thread(until, lambda: begun(tmp_path))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(tmp_path)


async def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    lines: list[str] = []
    code, tail = await run_logged(
        family(tmp_path, "yes"), environment=os.environ, log=tmp_path / "log", on_line=lines.append
    )
    assert (code, tail, lines) == (3, "begun", ["begun"])
    assert gone(tmp_path)
    assert (tmp_path / "log").read_text() == "begun\n"


async def test_a_progress_bar_without_line_ends_is_read_to_its_end(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import sys; w = sys.stdout.write; w('1 %\\r2 %\\r\\n'); w('=' * 3_000_000); w('\\nlast'); sys.exit(5)"
    code, tail = await run_logged(
        [sys.executable, "-c", script], environment=os.environ, log=tmp_path / "log", on_line=lines.append
    )
    assert (code, lines[:2], lines[3:]) == (5, ["1 %", "2 %"], ["last"])
    assert set(lines[2]) == {"="} and len(lines[2]) <= 1 << 12 and tail.endswith("/ last")
    assert (tmp_path / "log").stat().st_size == len("1 %\r2 %\r\n\nlast") + 3_000_000


async def test_its_end_and_its_words_are_the_commands_own(tmp_path: Path) -> None:
    script = "echo $LEGO_WORD; pwd; exit 7"
    code, output = await run_checked(["sh", "-c", script], cwd=tmp_path, environment={"LEGO_WORD": "x", "PATH": "/bin"})
    assert (code, output) == (7, f"x\n{tmp_path}\n")
    assert await run_checked(["sh", "-c", "kill -9 $$"]) == (137, "")
    assert await run_checked([str(tmp_path / "none")]) == (127, f"{tmp_path}/none: No such file or directory\n")
