"""One suite for every runtime: limits that hold, and endings that leave nothing, whoever dies first."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_cases import ROOT, WORKDIR, make_runtime, processes_with, shell, specification, traces

from engine.core.contracts import SandboxRuntime
from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec, Mount
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.ledger import reap
from engine.sandbox.local import LocalRuntime

# ---------------------------------------------------------------- limits


async def test_too_much_memory_kills_the_command_not_the_sandbox(sandbox: ContainedSandbox) -> None:
    result = await shell(sandbox, "python3 -c 'x = bytearray(600 << 20)'")
    assert result.oom_killed and result.exit_code != 0
    after = await shell(sandbox, "echo alive")
    assert after.stdout == b"alive\n" and not after.oom_killed
    assert not Path("oom").exists(), "conmon's mark lies in the user's folder"


async def test_a_fork_bomb_leaves_the_sandbox_in_hand(sandbox: ContainedSandbox) -> None:
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: open('/tmp/full', 'w').close()"
    result = await sandbox.exec(["python3", "-c", bomb], environment={}, cwd="/", timeout_s=2, stdin=b"")
    assert result.timed_out
    assert (await shell(sandbox, "rm -f /tmp/full; echo alive | cat")).stdout == b"alive\n"
    await shell(sandbox, f'python3 -c "{bomb}" >/dev/null 2>&1 &')
    while await sandbox.read("/tmp/full", 1) is None:
        await asyncio.sleep(0.01)
    echo = await sandbox.exec(["/bin/echo", "still"], environment={}, cwd="/", timeout_s=60, stdin=b"")
    assert echo.stdout == b"still\n"  # the limit is the agent's, not the host's way in
    assert await sandbox.kill() > 1


@pytest.mark.parametrize("storage", ["loop", "tmpfs"])
async def test_what_is_written_is_limited(kind: str, images: DebianImageStore, storage: str) -> None:
    runtime = make_runtime(kind, storage=storage)
    await runtime.start(images, f"conformance-disk-{kind}")
    try:
        sandbox = await runtime.create(specification())
        result = await shell(sandbox, "for n in 1 2 3; do dd if=/dev/zero of=big$n bs=1M count=40; done; ls big1")
        assert b"No space left on device" in result.stderr and result.stdout == b"big1\n"
        assert (await shell(sandbox, "head -c 100 /dev/zero > /dev/shm/x && echo ok")).stdout == b"ok\n"
    finally:
        await runtime.stop()


async def test_init_survives_everything_that_the_user_sends(sandbox: ContainedSandbox) -> None:
    await shell(sandbox, "for s in TERM INT HUP QUIT KILL USR1; do kill -$s 1; done; kill -9 -1")
    await shell(sandbox, "python3 -c 'import os; os.kill(-1, 9)'")
    await shell(sandbox, "kill -TERM -1")
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"


# ---------------------------------------------------------------- the end


async def test_kill_counts_what_outlived_the_last_command(sandbox: ContainedSandbox) -> None:
    await shell(sandbox, "sleep 608 & setsid sleep 609 & true")
    assert await sandbox.kill() == 2
    assert not processes_with("sleep 608") and not processes_with("sleep 609")
    assert await sandbox.kill() == 0
    with pytest.raises(SandboxError, match="gone"):
        await shell(sandbox, "true")
    with pytest.raises(SandboxError, match="gone"):
        await sandbox.listen(8080)


async def test_a_command_that_runs_when_the_sandbox_is_killed_says_so(sandbox: ContainedSandbox) -> None:
    running = asyncio.create_task(shell(sandbox, "touch begun; sleep 610"))
    while await sandbox.read(f"{WORKDIR}/begun", 1) is None:
        await asyncio.sleep(0.01)
    await sandbox.kill()
    with pytest.raises(SandboxError, match="ended while a command ran"):
        await running


async def test_stop_leaves_nothing_and_may_be_repeated(runtime: LocalRuntime) -> None:
    sandbox = await runtime.create(specification("gone"))
    room = sandbox.room.folder
    await shell(sandbox, "sleep 611 &")
    assert traces(room.name)
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()
    assert not traces(room.name) and not room.exists() and not processes_with("sleep 611")


async def test_a_cancelled_create_leaves_nothing(runtime: LocalRuntime, kind: str) -> None:
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        creating = asyncio.create_task(runtime.create(specification("cancelled")))
        await asyncio.sleep(delay)
        creating.cancel()
        done = await asyncio.gather(creating, return_exceptions=True)
        if isinstance(done[0], ContainedSandbox):
            await done[0].stop()
        else:
            assert isinstance(done[0], asyncio.CancelledError)
    assert not traces("cancelled-")


async def test_a_create_that_fails_says_why_and_leaves_nothing(runtime: LocalRuntime) -> None:
    nothing = Mount(source=Path("/no/such/folder"), target="/opt/agent")
    with pytest.raises(SandboxError, match="/no/such/folder"):
        await runtime.create(specification("failed", mounts=(nothing,)))
    inside_a_file = Mount(source=ROOT, target="/etc/passwd/agent")
    with pytest.raises(SandboxError):
        await runtime.create(specification("failed", mounts=(inside_a_file,)))
    unknown = ImageSpec(name="unbuilt", suite="bookworm", packages=("nothing",), pip=())
    with pytest.raises(SandboxError, match="unbuilt"):
        await runtime.create(specification("failed", image=unknown))
    assert not traces("failed-")


async def test_the_runtimes_stop_ends_every_sandbox(kind: str, images: DebianImageStore) -> None:
    runtime: SandboxRuntime = make_runtime(kind)
    await runtime.start(images, f"conformance-stop-{kind}")
    await asyncio.gather(*(runtime.create(specification("left-behind")) for _ in range(3)))
    await runtime.stop()
    await runtime.stop()
    assert not traces("left-behind-")


async def test_what_a_stop_could_not_remove_spoils_no_trial_and_goes_in_the_end(
    kind: str, images: DebianImageStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(folder: Path) -> None:
        raise SandboxError(f"cannot unmount {folder}")

    runtime = make_runtime(kind)
    await runtime.start(images, f"conformance-stuck-{kind}")
    sandbox = await runtime.create(specification("stuck"))
    with monkeypatch.context() as patch:
        patch.setattr(f"engine.sandbox.{kind}.dismantle", fail)
        await sandbox.stop()
    assert "cannot unmount" in caplog.text and traces("stuck-")
    await runtime.stop()
    assert not traces("stuck-")


CRASHING = """
import asyncio, os, sys
from sandbox_cases import make_runtime, shell, specification
from engine.sandbox.images import DebianImageStore

async def main():
    runtime = make_runtime(sys.argv[1])
    await runtime.start(DebianImageStore(), sys.argv[2])
    sandbox = await runtime.create(specification("orphan"))
    await shell(sandbox, "sleep 612 &")
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_what_a_killed_run_left_is_reaped(kind: str, images: DebianImageStore) -> None:
    owner = f"conformance-crash-{kind}-{os.getpid()}"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    script = [sys.executable, "-c", CRASHING, kind, owner]
    crashed = await asyncio.to_thread(subprocess.run, script, env=environment, capture_output=True, text=True)
    assert crashed.returncode == -9, crashed.stderr
    assert traces("orphan-")
    living = make_runtime(kind)
    await living.start(images, f"{owner}-living")  # a start reaps what the dead left, of whatever owner
    try:
        assert not traces("orphan-") and not processes_with("sleep 612")
        sandbox = await living.create(specification("living"))
        assert reap(f"{owner}-living") == () and reap(None) == ()  # and never the living
        assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"
    finally:
        await living.stop()
