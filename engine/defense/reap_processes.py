"""Ends everything that the agent left running, before anything is read from its sandbox.

Invariant: when `settle` returns no process of the agent lives, so nothing can change what is read next. What outlived
the harness is a finding.
"""

from collections.abc import Sequence

from engine.core.contracts import Sandbox
from engine.core.records import Finding, Task
from engine.defense.stage import Stage

NAME = "reap_processes"


class ReapProcesses(Stage):
    """No process outlives the agent (`contracts.Defense`)."""

    name = NAME

    def __init__(self) -> None:
        """It has no settings."""

    async def settle(self, task: Task, sandbox: Sandbox) -> Sequence[Finding]:
        """Kill all; raises SandboxError when that fails."""
        outlived = await sandbox.kill()
        if not outlived:
            return ()
        return (
            Finding(stage=NAME, phase="extract", detail=f"{outlived} processes outlived the agent and were killed"),
        )
