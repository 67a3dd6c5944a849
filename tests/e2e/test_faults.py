"""What breaks in a trial, at every stage: what the agent did itself is graded, what befell it is excluded, nobody else
notices, and nothing is left. The real mini-swe-agent on both runtimes."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from calc_task import write_calc
from harness_pieces import task_image
from record_pieces import a_trial
from shell_trials import shell_workshop

from engine.core.records import Scored, Termination
from engine.run.trial import Workshop, run_trial
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.ledger import reap
from engine.sandbox.podman_service import command as podman_command
from engine.sandbox.podman_service import environment as podman_environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIX = "sed -i 's/return a - b/return a + b/' calc/__init__.py"
SLEEPERS = """import os
for n in range(400):
 try:
  if not os.fork(): os.setsid(); os.closerange(0, 3); os.execvp('sleep', ['sleep', '600'])
 except OSError: break
"""
WAIT = "touch /tmp/waiting; sleep 20"

OWN: dict[str, tuple[str, float]] = {
    "memory": ("python3 -c 'x = bytearray(4 << 30)'", 1.0),
    "fork_bomb": ("timeout -s KILL 2 python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'", 1.0),
    "disk": ("dd if=/dev/zero of=big bs=1M count=400; rm big", 1.0),
    "disk_stays_full": ("dd if=/dev/zero of=/tmp/big bs=1M count=400; echo > calc/__init__.py", 0.0),
    "pids": (f'python3 -c "{SLEEPERS}"', 1.0),
    "unkillable": ("trap '' TERM INT HUP; setsid sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 &", 1.0),
    "init": ("for s in TERM INT HUP KILL; do kill -$s 1; done; true", 1.0),
}
"""What an agent's commands may do → (command, reward of the fix that it tries afterwards)."""


@dataclass(frozen=True)
class Ground:
    shop: Workshop
    sandbox: str

    async def play(self, sample: int, folder: Path, epoch: int = 0) -> Scored:
        """`epoch` tells apart trials of one sample."""
        task = replace(write_calc(folder, task_image()), memory_mb=768, grade_timeout_s=20.0, agent_timeout_s=120.0)
        return await run_trial(a_trial(task, epoch=epoch, sample=sample, harness="mini_swe_agent"), self.shop)

    async def running(self, name: str) -> ContainedSandbox:
        """The sandbox of a trial that has begun to wait in a command, or of a grading."""
        runtime: Any = self.shop.sandboxes
        while True:
            for one in tuple(runtime._sandboxes):
                spec = one._parts.spec
                if spec.name.endswith(name) and (
                    name.endswith("-grade") or await one.read("/tmp/waiting", 1) is not None
                ):
                    return one  # type: ignore[no-any-return]
            await asyncio.sleep(0.005)


LIMITS = ("verify.slack_s=6", "sandbox.pids=96", "sandbox.disk_mb=256")
PODMAN = [pytest.mark.podman, pytest.mark.slow]
COMMANDS = [[command, FIX] for command, _ in OWN.values()] + [[FIX, WAIT], [FIX, WAIT, "true"], [FIX]]
STRUCK, NEIGHBOUR, GRADED = len(OWN), len(OWN) + 1, len(OWN) + 2
"""Samples."""


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["bubblewrap", pytest.param("podman", marks=PODMAN)],
)
async def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    scratch = tmp_path_factory.mktemp("faults")
    async with shell_workshop(request.param, COMMANDS, scratch, *LIMITS) as shop:
        yield Ground(shop, request.param)
    assert reap(f"{scratch.name}-{request.param}") == (), "the owner that `shell_workshop` names"


@pytest.mark.parametrize("fault", OWN)
async def test_what_the_agent_did_itself_is_graded(ground: Ground, fault: str, tmp_path: Path) -> None:
    scored = await ground.play(list(OWN).index(fault), tmp_path)
    trajectory, verdict = scored.trajectory, scored.verdict
    assert not trajectory.termination.excluded, trajectory.reason
    assert verdict is not None and verdict.reward == OWN[fault][1], (trajectory, verdict)
    stages = {finding.stage for finding in trajectory.findings}
    assert ("reap_processes" in stages) == (fault in ("pids", "unkillable")), stages


async def kill_init(ground: Ground, sandbox: ContainedSandbox) -> None:
    os.kill(sandbox._parts.init, signal.SIGKILL)


async def remove_container(ground: Ground, sandbox: ContainedSandbox) -> None:
    """As a person would who tidies up."""
    name = f"lego-rl-{sandbox.room.folder.name}"
    command = [*podman_command(), "rm", "--force", "--time", "0", name]
    await asyncio.to_thread(subprocess.run, command, env=podman_environment(), check=True, capture_output=True)


async def kill_service(ground: Ground, sandbox: ContainedSandbox) -> None:
    runtime: Any = ground.shop.sandboxes
    runtime._service._process.kill()


Strike = Callable[[Ground, ContainedSandbox], Awaitable[None]]
STRIKES: dict[str, tuple[Strike, Termination]] = {
    "first process killed": (kill_init, Termination.SANDBOX_LOST),
    "container removed": (remove_container, Termination.SANDBOX_LOST),
    "service killed": (kill_service, Termination.AGENT_COMPLETED),
}
STRUCK_AT = [("bubblewrap", "first process killed"), *(("podman", name) for name in STRIKES)]


@pytest.mark.parametrize(
    ("ground", "name"),
    [pytest.param(*each, marks=PODMAN if each[0] == "podman" else []) for each in STRUCK_AT],
    indirect=["ground"],
)
async def test_what_befalls_a_sandbox_excludes_its_trial_and_no_other(
    ground: Ground, name: str, tmp_path: Path
) -> None:
    strike, ends = STRIKES[name]
    epoch = list(STRIKES).index(name)
    trials = (ground.play(number, tmp_path / str(number), epoch) for number in (STRUCK, NEIGHBOUR))
    struck, neighbour = (asyncio.create_task(trial) for trial in trials)
    await strike(ground, await ground.running(f"e{epoch}-calc-s{STRUCK}-a0"))
    scored, beside = await asyncio.gather(struck, neighbour)
    assert scored.trajectory.termination is ends, scored.trajectory.reason
    assert (scored.verdict is None) == ends.excluded
    assert beside.verdict is not None and beside.verdict.reward == 1.0
    assert beside.trajectory.termination is Termination.AGENT_COMPLETED


async def test_a_grading_that_loses_its_sandbox_is_no_verdict(ground: Ground, tmp_path: Path) -> None:
    trial = asyncio.create_task(ground.play(GRADED, tmp_path))
    await kill_init(ground, await ground.running(f"-s{GRADED}-a0-grade"))
    scored = await trial
    assert scored.trajectory.termination is Termination.GRADER_FAILED and scored.verdict is None
