"""A command on a terminal of the sandbox's own, and sandboxes that outlive the process that made them."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_cases import WORKDIR, make_runtime, shell, specification, traces

from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.sandbox import ledger
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.reentry import enter_left, names


class Person:
    """Types what it is given once it is asked for, and reads what is shown."""

    def __init__(self, *typed: tuple[bytes, bytes]) -> None:
        self._typed = list(typed)
        self.seen = b""

    async def talk(self, terminal: int) -> None:
        while True:
            try:
                self.seen += os.read(terminal, 4096)
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError:
                return
            if self._typed and self._typed[0][0] in self.seen:
                _, words = self._typed.pop(0)
                self.seen = b""
                os.write(terminal, words)


async def attach(sandbox: ContainedSandbox, person: Person, *command: str) -> int:
    return await sandbox.attach(command, environment={"FROM_CALL": "too"}, cwd=WORKDIR, talk=person.talk)


async def test_a_command_has_a_terminal_with_a_name_and_all_else_as_any(sandbox: ContainedSandbox) -> None:
    person = Person()
    script = (
        "tty; id -u; pwd; echo $FROM_SPEC $FROM_CALL; "
        "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/self/cgroup >/dev/null; exit 7"
    )
    assert await attach(sandbox, person, "/bin/sh", "-c", script) == 7
    lines = person.seen.decode().split("\r\n")
    assert lines[:4] == ["/dev/pts/0", "10001", WORKDIR, "yes too"]
    assert [line.split()[1] for line in lines[4:7]] == ["0000000000000000", "1", "2"]


async def test_ctrl_c_reaches_what_runs_and_ctrl_d_ends_the_shell(sandbox: ContainedSandbox) -> None:
    person = Person(
        (b"READY", b"sh -c 'echo be\"\"gun; exec sleep 1000'\n"),
        (b"begun", b"\x03"),  # which the line as typed does not say
        (b"READY", b"echo got-$?\n"),
        (b"got-130", b"\x04"),
    )
    ready = "PS1='READY ' exec /bin/bash --norc --noprofile -i"
    assert await asyncio.wait_for(attach(sandbox, person, "/bin/sh", "-c", ready), 30) == 0
    assert b"exit" in person.seen
    assert (await shell(sandbox, "echo alive")).stdout == b"alive\n"


async def test_who_goes_away_takes_the_command_along(sandbox: ContainedSandbox) -> None:
    async def gone(terminal: int) -> None:
        return

    assert await sandbox.attach(["sleep", "1000"], environment={}, cwd=WORKDIR, talk=gone) == -1
    assert (await shell(sandbox, "cat /proc/[0-9]*/comm")).stdout.count(b"sleep") == 0


async def test_what_a_command_leaves_behind_goes_on_and_hangs_nothing_up(sandbox: ContainedSandbox) -> None:
    person = Person()
    assert await attach(sandbox, person, "/bin/sh", "-c", "trap '' HUP; sleep 1000 & echo said") == 0
    assert b"said\r\n" in person.seen
    assert (await shell(sandbox, "cat /proc/[0-9]*/comm")).stdout.count(b"sleep") == 1


# ---------------------------------------------------------------- left running

LEAVES = """
import asyncio, sys
from sandbox_cases import make_runtime, shell, specification
from engine.sandbox.images import DebianImageStore

async def main(kind, owner):
    runtime = make_runtime(kind)
    await runtime.start(DebianImageStore(), owner)
    sandbox = await runtime.create(specification("left", lasting=True))
    other = await runtime.create(specification("other", lasting=True))
    await shell(sandbox, "echo kept > file; sleep 1000 >/dev/null 2>&1 &")
    assert await sandbox.kill() == 1
    await shell(sandbox, "sleep 1000 >/dev/null 2>&1 &")
    name = await sandbox.leave({"FROM_LEAVE": "yes"}, "/testbed")
    await sandbox.stop()
    await runtime.stop()
    print(name, other.room.folder.name)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def own_cache(images: DebianImageStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records of sandboxes that no run beside this test reads; the images are everybody's. Podman wants short paths."""
    built = cache_dir() / "images"
    with tempfile.TemporaryDirectory(prefix="lego-") as folder:
        monkeypatch.setenv("LEGO_RL_CACHE", folder)
        (Path(folder) / "images").symlink_to(built)
        yield


@pytest.fixture
def left(kind: str, own_cache: None) -> Iterator[tuple[str, str, str]]:
    """Owner, and two sandboxes whose process has ended: one that it left, one that it did not."""
    owner = f"left-{kind}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", LEAVES, kind, owner]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        name, other = done.stdout.split()
        yield owner, name, other
    finally:
        ledger.reap_sessions(owner, left_too=True)


async def test_one_that_is_left_is_entered_again_and_goes_when_asked(left: tuple[str, str, str]) -> None:
    owner, name, other = left
    assert traces(other) == []
    assert ledger.reap(None) == ()  # as the next start of any run does
    assert name in names()
    with enter_left(name) as (sandbox, how):
        result = await shell(sandbox, "cat file; echo $FROM_SPEC $FROM_LEAVE; id -u; cat /proc/[0-9]*/comm")
        lines = result.stdout.decode().split()
        assert lines[:4] == ["kept", "yes", "yes", "10001"]
        assert "sleep" not in lines
        assert how.workdir == WORKDIR
        assert ledger.reap_sessions(owner, left_too=True) == ([], []), "somebody is inside"
        with enter_left(name) as (again, _):  # beside the other
            assert (await shell(again, "echo both")).stdout == b"both\n"
    assert name in names()
    assert ledger.reap_sessions(owner, left_too=True) == (["left"], [])
    assert name not in names()
    assert traces(name) == []
    with pytest.raises(SandboxError, match=f"no sandbox {name} was left running"), enter_left(name):
        pass


async def test_one_that_lasts_ends_with_its_runtime_unless_it_is_left(kind: str, own_cache: None) -> None:
    runtime = make_runtime(kind)
    await runtime.start(DebianImageStore(), f"lasting-{kind}")
    try:
        sandbox = await runtime.create(specification(lasting=True))
        name = sandbox.room.folder.name
        assert traces(name)
    finally:
        await runtime.stop()
    assert traces(name) == []
    assert name not in names()
