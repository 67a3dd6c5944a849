"""Whole trials of the real mini-swe-agent on a pool of two podman services: graded, whatever the agent does to its own
sandbox; and a host that dies mid-run, which costs its own trial alone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from calc_task import write_calc
from harness_pieces import task_image
from pool_services import Service, problem, services
from record_pieces import a_trial
from shell_trials import shell_workshop
from test_faults import FIX, OWN

from engine.core.records import Scored, Termination
from engine.run.trial import Workshop, run_trial

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(bool(problem()), reason=problem() or "podman can be had"),
]
REACH = "python3 -c 'import socket; socket.socket().connect_ex((\"192.0.2.1\", 80))'"
FAULTS = ("memory", "fork_bomb", "pids", "unkillable", "init")
COMMANDS = [[OWN[name][0], FIX] for name in FAULTS] + [[FIX], ["true"], [REACH, FIX]]
HOLD = "touch /tmp/waiting; timeout 20 sh -c 'until test -e /tmp/go; do sleep 0.2; done'; true"
COMMANDS += [[FIX, *[HOLD] * 9]] * 2  # the harness gives each command half a minute
FIXED, UNTOUCHED, REACHING, STRUCK, NEIGHBOUR = range(len(FAULTS), len(COMMANDS))
"""Samples."""
COLD = (
    "harnesses.mini_swe_agent.start=cold",
    "verify.start=cold",
    "verify.disk_mb=0",
    "sandbox.pids=96",
    "schedule.max_turns=12",
)


@dataclass(frozen=True)
class Ground:
    shop: Workshop
    hosts: list[Service]

    async def play(self, sample: int, folder: Path, epoch: int = 0) -> Scored:
        task = replace(write_calc(folder, task_image()), memory_mb=768, grade_timeout_s=60.0, agent_timeout_s=240.0)
        return await run_trial(a_trial(task, epoch=epoch, sample=sample, harness="mini_swe_agent"), self.shop)

    async def waiting(self, count: int) -> dict[str, Any]:
        """Name of the host → the sandbox on it whose trial waits."""
        runtime: Any = self.shop.sandboxes
        while True:
            found = {
                host.name: each
                for host, each in tuple(runtime._running.sandboxes.values())
                if await each.read("/tmp/waiting", 1) is not None
            }
            if len(found) == count:
                return found
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    with services("one", "two") as hosts:
        for host in hosts:
            await host.answers()
        each = "{{name: {0.name}, address: 'unix://{0.socket}', capacity: null, unencrypted: false}}"
        listed = f"sandbox.hosts=[{', '.join(each.format(host) for host in hosts)}]"
        scratch = tmp_path_factory.mktemp("pool")
        async with shell_workshop("podman_pool", COMMANDS, scratch, listed, "sandbox.probe_s=0.5", *COLD) as shop:
            yield Ground(shop, hosts)
        assert not any(host.containers() for host in hosts)


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_the_agent_does_to_its_own_sandbox_is_graded(ground: Ground, fault: str, tmp_path: Path) -> None:
    scored = await ground.play(FAULTS.index(fault), tmp_path)
    trajectory, verdict = scored.trajectory, scored.verdict
    assert not trajectory.termination.excluded, trajectory.reason
    assert verdict is not None and verdict.reward == OWN[fault][1], (trajectory, verdict)


async def test_a_fix_is_rewarded_and_nothing_is_not(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    fixed, untouched = await asyncio.gather(ground.play(FIXED, tmp_path / "a"), ground.play(UNTOUCHED, tmp_path / "b"))
    assert fixed.verdict is not None and fixed.verdict.reward == 1.0, fixed
    assert untouched.verdict is not None and untouched.verdict.reward == 0.0, untouched


async def test_what_is_tried_in_vain_is_a_finding(ground: Ground, tmp_path: Path) -> None:
    command = await ground.play(REACHING, tmp_path)
    assert command.verdict is not None and command.verdict.reward == 1.0
    assert any("192.0.2.1:80" in finding.detail for finding in command.trajectory.findings), command.trajectory


async def test_a_host_that_dies_costs_its_own_trial_alone(ground: Ground, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("struck", "neighbour", "next")]
    for folder in folders:
        folder.mkdir()
    struck = asyncio.create_task(ground.play(STRUCK, folders[0]))
    trials = [struck]
    try:
        first = await ground.waiting(1)
        (on,) = first
        neighbour = asyncio.create_task(ground.play(NEIGHBOUR, folders[1]))
        trials.append(neighbour)
        both = await ground.waiting(2)
        dying = next(host for host in ground.hosts if host.name == on)
        dying.kill()
        lost = await struck
        assert lost.trajectory.termination is Termination.SANDBOX_LOST and lost.verdict is None, lost
        later = await ground.play(FIXED, folders[2], epoch=1)
        assert later.verdict is not None and later.verdict.reward == 1.0
        (other,) = (sandbox for name, sandbox in both.items() if name != on)
        await other.write({"/tmp/go": b""})
        kept = await neighbour
        assert kept.verdict is not None and kept.verdict.reward == 1.0, kept
        dying.start()
        await dying.answers()
        runtime: Any = ground.shop.sandboxes
        while any(host.seats.away for host in runtime._running.hosts):
            await asyncio.sleep(0.1)
        while dying.containers():  # what was left of it goes when it answers again
            await asyncio.sleep(0.1)
    finally:
        for trial in trials:
            trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)
