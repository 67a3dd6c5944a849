"""A supervised process tree: it dies with its owner and on stop, whatever it did to get away."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.errors import RunError
from engine.inference.process import ServerProcess, port_taken

# A server that ignores SIGTERM and leaves a daemon behind: a new session, its parent gone.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
open(sys.argv[2], "w").write(str(os.getpid()))
time.sleep(600)
"""
OWNER = """
import asyncio, sys, pathlib
from engine.inference.process import ServerProcess
async def main():
    log, folder, *command = sys.argv[1:]
    server = ServerProcess("s", [sys.executable, "-c", *command], {}, pathlib.Path(log))
    await server.start(0.1, pathlib.Path(folder))
    await asyncio.sleep(600)
asyncio.run(main())
"""


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came true")


def gone(file: Path) -> bool:
    try:
        state = Path(f"/proc/{file.read_text()}/stat").read_text()
    except FileNotFoundError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


def written(file: Path) -> bool:
    return file.exists() and file.read_text() != ""


async def never() -> bool:
    return False


async def test_stop_leaves_nothing_of_a_server_that_will_not_go(tmp_path: Path) -> None:
    daemon, main = tmp_path / "daemon", tmp_path / "main"
    command = [sys.executable, "-c", STUBBORN, str(daemon), str(main)]
    server = ServerProcess("stubborn", command, {}, tmp_path / "log")
    await server.start(grace_s=0.1)
    await asyncio.to_thread(until, lambda: written(daemon) and written(main))
    assert server.alive and not gone(daemon)
    await server.stop()
    assert not server.alive and gone(daemon) and gone(main)
    await server.stop()


def test_it_dies_with_its_owner(tmp_path: Path) -> None:
    daemon, main = tmp_path / "daemon", tmp_path / "main"
    folder = tmp_path / "socket"
    folder.mkdir()
    arguments = [str(tmp_path / "log"), str(folder), STUBBORN, str(daemon), str(main)]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *arguments])
    try:
        until(lambda: written(daemon) and written(main))
        assert not gone(daemon)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    until(lambda: gone(daemon) and gone(main) and not folder.exists())


async def test_a_cancelled_stop_still_stops(tmp_path: Path) -> None:
    server = ServerProcess("sleeper", ["sleep", "600"], {}, tmp_path / "log")
    await server.start(grace_s=0.1)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not server.alive


async def test_death_at_start_tells_the_error_and_the_exit_code(tmp_path: Path) -> None:
    code = "import sys; print('loading'); sys.stderr.write('ValueError: no such model\\n'); sys.exit(7)"
    server = ServerProcess("vLLM", [sys.executable, "-c", code], {}, tmp_path / "deep" / "log")
    await server.start(grace_s=1)
    with pytest.raises(RunError, match=r"^vLLM died at start \(exit code 7\): ValueError: no such model$"):
        await server.wait_until(never, timeout_s=60)
    assert server.status() == "exit code 7"


async def test_a_server_that_was_killed_says_by_what(tmp_path: Path) -> None:
    server = ServerProcess("vLLM", ["sh", "-c", "echo loading weights; kill -9 $$"], {}, tmp_path / "log")
    await server.start(grace_s=1)
    line = r"^vLLM died at start \(exit code 137, killed by SIGKILL\): loading weights$"
    with pytest.raises(RunError, match=line):
        await server.wait_until(never, timeout_s=60)


def test_the_last_words_are_the_errors_each_once_and_without_its_prefix(tmp_path: Path) -> None:
    server = ServerProcess("vLLM", ["true"], {}, tmp_path / "log")
    assert server.tail() == "no log"
    worker, core = "(Worker pid=7) ERROR 11-30 07:56:50 [multiproc_executor.py:1055]", "(EngineCore pid=6)"
    lines = [
        "(APIServer pid=5) WARNING 11-30 07:56:01 [system_utils.py:3] Found ulimit, it can cause `OSError: [Errno 24]`",
        f"{worker} ValueError: too little",
        f"{worker}   File 'x', line 3",
        f"{core} ERROR 11-30 07:56:50 [core.py:1366] RuntimeError: Worker failed with error 'too little', see above",
        f"{core} RuntimeError: Worker failed with error 'too little', see above",
        "(APIServer pid=5) RuntimeError: Engine core initialization failed.",
        "",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    assert server.tail() == "ValueError: too little | RuntimeError: Engine core initialization failed."
    (tmp_path / "log").write_text(f"RuntimeError: {'x' * 1000}\n")
    assert len(server.tail()) == 300
    (tmp_path / "log").write_text("")
    assert server.tail() == "empty log"


async def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    server = ServerProcess("slow", ["sleep", "600"], {}, tmp_path / "log")
    await server.start(grace_s=0.1)
    try:
        with pytest.raises(TimeoutError, match="slow was not ready after 0 s: empty log"):
            await server.wait_until(never, timeout_s=0)
    finally:
        await server.stop()


async def test_the_environment_is_laid_over_the_own_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGO_KEPT", "kept")
    server = ServerProcess("env", ["sh", "-c", "echo $LEGO_KEPT $LEGO_NEW"], {"LEGO_NEW": "new"}, tmp_path / "log")
    await server.start(grace_s=1)
    with pytest.raises(RunError, match=r"exit code 0.*: kept new"):
        await server.wait_until(never, timeout_s=60)


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert port_taken(port)
    assert not port_taken(port)


def test_supervision_refuses_an_owner_that_is_gone() -> None:
    script = Path(__file__).parents[3] / "engine/core/supervise.py"
    wrong = str(os.getppid())
    done = subprocess.run([sys.executable, str(script), "1", wrong, "sh", "-c", "echo ran"], capture_output=True)
    assert done.returncode == 1 and done.stdout == b""
