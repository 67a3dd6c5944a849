"""Notes what the agent left running. What ends it is no defence that could be off: the trial kills every process of the
sandbox before it reads anything, whatever is configured, and tells how many there were.
"""

from collections.abc import Sequence

from engine.core.contracts import Sandbox
from engine.core.records import Finding, Task
from engine.core.task_contracts import Mode
from engine.defense.stage import Stage

NAME = "reap_processes"


class ReapProcesses(Stage):
    """Processes that outlived the agent (`task_contracts.Defense`)."""

    name = NAME

    def __init__(self, *, mode: Mode) -> None:
        self.mode = mode

    async def settle(self, task: Task, sandbox: Sandbox, outlived: int) -> Sequence[Finding]:
        """One finding where there were any."""
        if not outlived:
            return ()
        detail = f"{outlived} processes outlived the agent and were killed"
        return (Finding(stage=NAME, phase="extract", detail=detail, acted=True),)
