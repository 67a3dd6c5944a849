"""Whole trials whose setup reaches a server of this machine, and whose agent does or does not: the real mini-swe-agent
in real sandboxes."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from calc_task import write_calc
from harness_pieces import task_image
from record_pieces import a_trial
from shell_trials import shell_workshop

from engine.core.records import Scored, Termination
from engine.core.specs import SandboxSpec
from engine.run.trial import Workshop, run_trial

FIX = "sed -i 's/return a - b/return a + b/' calc/__init__.py"
REACH = (
    """python3 -c "import socket; s = socket.create_connection(('127.0.0.1', {port}), 20); print(s.recv(9))" || true"""
)


async def trial(shop: Workshop, folder: Path, command: str) -> tuple[Scored, list[str]]:
    """One, and what its setup said, in which a task of this kind runs a command."""
    said: list[str] = []
    create = shop.sandboxes.create

    async def with_setup(spec: SandboxSpec) -> Any:
        sandbox = await create(spec)
        if spec.phase == "setup":
            result = await sandbox.exec(["sh", "-c", command], environment={}, cwd="/", timeout_s=60, stdin=b"")
            said.append(result.stdout.decode().strip())
        return sandbox

    runtime: Any = shop.sandboxes
    runtime.create = with_setup
    return await run_trial(a_trial(write_calc(folder, task_image()), harness="mini_swe_agent"), shop), said


@pytest.mark.parametrize(
    "sandbox", ["bubblewrap", pytest.param("podman", marks=[pytest.mark.podman, pytest.mark.slow])]
)
@pytest.mark.parametrize("agent", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_setup_reaches_what_the_agent_does_not(short_tmp: Path, sandbox: str, agent: bool) -> None:
    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"greetings")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    command = REACH.format(port=port)
    options = [f"sandbox.network.setup=['127.0.0.1:{port}']"]
    options += [f"sandbox.network.agent=['127.0.0.1:{port}']"] if agent else []
    tries = [command, f"{command}; getent hosts pypi.org; true", FIX]
    async with server, shell_workshop(sandbox, [tries], short_tmp / "scratch", *options) as shop:
        scored, said = await trial(shop, short_tmp / "task", command)
    assert said == ["b'greetings'"]
    trajectory = scored.trajectory
    assert trajectory.termination is Termination.AGENT_COMPLETED, trajectory.reason
    assert scored.verdict is not None and scored.verdict.reward == 1.0
    details = {(finding.phase, finding.detail) for finding in trajectory.findings}
    assert ("setup", f"setup reached 127.0.0.1:{port} (1 connections, 0 bytes sent, 9 received)") in details
    assert ("agent", "tried to reach pypi.org") in details
    reached = f"reached 127.0.0.1:{port} (2 connections, 0 bytes sent, 18 received), which sandbox.network.agent allows"
    assert (("agent", reached) in details) is agent
    outputs = [part for exchange in trajectory.exchanges for part in [str(exchange.request)] if "greetings" in part]
    assert bool(outputs) is agent
