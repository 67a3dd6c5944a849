"""The process that takes commands into the sandboxes of a runtime: lost, replaced, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_cases import ROOT, WORKDIR, shell, specification
from warm_pieces import cmdline, descendants, parent

from engine.core.errors import SandboxError
from engine.core.specs import ExecResult
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime


def porters(of: int | None = None) -> list[int]:
    """Process ids of the porters that this process (or `of`) started, without what they forked."""
    found = [pid for pid in descendants(of or os.getpid()) if b"/porter.py" in cmdline(pid)]
    return [pid for pid in found if parent(pid) not in found]


async def test_one_process_serves_all_sandboxes_and_ends_with_the_runtime(
    runtime: LocalRuntime, sandbox: ContainedSandbox
) -> None:
    other = await runtime.create(specification("other"))
    results = await asyncio.gather(*(shell(each, "echo $$; pwd") for each in (sandbox, other) for _ in range(10)))
    assert [result.exit_code for result in results] == [0] * 20
    assert len(porters()) == 1
    await runtime.stop()
    assert not porters()


async def test_a_lost_porter_takes_its_commands_along_and_is_replaced(sandbox: ContainedSandbox) -> None:
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 611"))
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    (lost,) = porters()
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(SandboxError, match="cannot be entered: the process that entered was killed"):
        await running
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"
    (new,) = porters()
    assert new != lost


async def test_what_it_forks_has_nothing_of_the_others(sandbox: ContainedSandbox) -> None:
    """Descriptors and environment of a command are its own, whoever runs beside it."""

    async def look() -> ExecResult:
        return await shell(sandbox, "ls -l /proc/self/fd | grep -c -e '->'; env | sort")

    beside = asyncio.create_task(shell(sandbox, "cat >/dev/null; sleep 0.3"))
    results = await asyncio.gather(*(look() for _ in range(5)))
    await beside
    lines = [result.stdout.decode().splitlines() for result in results]
    assert lines[0][0] == "4", "standard streams, and the folder that ls reads"
    assert {line.partition("=")[0] for line in lines[0][1:]} == {"FROM_SPEC", "HOME", "PATH", "PWD", "USER"}
    assert all(each == lines[0] for each in lines)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_engine(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import asyncio, os, sys; from engine.sandbox.forks import Porter\n"
        "async def main():\n"
        "    porter = Porter()\n"
        "    await porter._ready()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"ready\n"
        (porter,) = porters(engine.pid)
    finally:
        engine.send_signal(how)
        engine.communicate()
    for _ in range(500):
        if not Path(f"/proc/{porter}").exists():
            return
        time.sleep(0.01)
    pytest.fail("the porter outlived its engine")
