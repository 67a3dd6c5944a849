"""One suite for every runtime: a sandbox whose owner hangs is ended by its runtime, or removed by another process."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_cases import WORKDIR, processes_with, shell, specification, traces

from engine.core.errors import SandboxError
from engine.sandbox import lifetime
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime


async def begun(sandbox: ContainedSandbox) -> None:
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)


async def test_who_is_over_its_time_is_ended_and_gives_nothing_out(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = await runtime.create(specification("short", work_s=30.0))
    long = await runtime.create(specification("long", work_s=600.0))
    running = asyncio.create_task(shell(short, "touch begun; sleep 633"))
    await begun(short)
    real = lifetime.clock
    monkeypatch.setattr(lifetime, "clock", lambda: real() + 629)  # 30 s and the grace of 600 s are nearly over
    await runtime.end_expired()
    assert not running.done()
    monkeypatch.setattr(lifetime, "clock", lambda: real() + 631)
    await runtime.end_expired()
    why = r"sandbox short was ended: its time was over .*sandbox\.grace_s"
    with pytest.raises(SandboxError, match=why):
        await running
    assert processes_with("sleep 633") == []
    for asked in (shell(short, "true"), short.read("/begun", 1), short.download(WORKDIR, tmp_path / "tree")):
        with pytest.raises(SandboxError, match=why):
            await asked
    assert (await shell(long, "echo alive")).stdout == b"alive\n"
    name = short.room.folder.name
    await short.stop()
    assert traces(name) == []


async def test_the_runtime_looks_by_itself(runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    await runtime.stop()
    monkeypatch.setattr("engine.sandbox.local._LOOK_S", 0.02)
    assert runtime._images is not None
    await runtime.start(runtime._images, "conformance-timekeeper")
    sandbox = await runtime.create(specification(work_s=30.0))
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 634"))
    await begun(sandbox)
    real = lifetime.clock
    monkeypatch.setattr(lifetime, "clock", lambda: real() + 631)
    with pytest.raises(SandboxError, match="its time was over"):
        await running


REAPS = """
import sys
from engine.sandbox import ledger, lifetime
real = lifetime.clock
lifetime.clock = lambda: real() + float(sys.argv[2])
print(*ledger.reap(sys.argv[1]), sep="\\n")
"""


async def test_another_process_removes_what_an_owner_that_hangs_did_not_end(runtime: LocalRuntime) -> None:
    hung = await runtime.create(specification("hung", work_s=30.0))
    fine = await runtime.create(specification("fine", work_s=600.0))
    running = asyncio.create_task(shell(hung, "touch begun; sleep 635"))
    await begun(hung)
    name = hung.room.folder.name
    assert runtime._session is not None

    async def reaped(ahead_s: float) -> str:
        command = [sys.executable, "-c", REAPS, runtime._session.owner, str(ahead_s)]  # type: ignore[union-attr]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return (
            await asyncio.to_thread(subprocess.run, command, env=environment, stdout=-1, check=True)
        ).stdout.decode()

    assert await reaped(640) == "\n" and traces(name)  # its owner's own turn
    assert await reaped(700) == "hung (over its time, and its owner, who lives, did not end it)\n"
    assert traces(name) == [] and processes_with("sleep 635") == []
    with pytest.raises(SandboxError, match="ended while a command ran"):
        await running
    await hung.stop()  # as its trial does next, and nobody minds
    assert hung not in runtime._sandboxes
    assert (await shell(fine, "echo alive")).stdout == b"alive\n"
