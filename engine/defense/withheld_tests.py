"""Refuses a task whose tree shows the agent what it is judged by.

Invariant: no file of the tree that the agent gets equals a withheld test file, wherever it lies, unless the base had
it at that very path. A leak is a fault of the task, so nothing is mended in silence: EnvironmentFailure, or a finding
where this defence only observes.
"""

import asyncio
import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path

from engine.core.errors import EnvironmentFailure
from engine.core.patch import walk_files
from engine.core.records import Finding, Task
from engine.core.task_contracts import Mode
from engine.defense.stage import Stage

NAME = "withheld_tests"


class WithheldTests(Stage):
    """The agent's tree holds none of the grader's tests (`task_contracts.Defense`)."""

    name = NAME

    def __init__(self, *, mode: Mode, min_bytes: int) -> None:
        self.mode = mode
        self.min_bytes = min_bytes

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """Compare the staged tree with the withheld files. Raises EnvironmentFailure."""
        leaks = await asyncio.to_thread(self.leaks, task, tree)
        if leaks and self.mode == "enforce":
            raise EnvironmentFailure(
                f"task {task.id} shows the agent its withheld tests ({leaks[0]}): remove the file from the task"
            )
        return (self.finding("setup", "the tree shows the agent its withheld tests", leaks),) if leaks else ()

    def leaks(self, task: Task, tree: Path) -> list[str]:
        """Paths of the tree whose contents are those of a withheld file that the base does not have at its path."""
        secret = set()
        for path, info in walk_files(task.tests):
            held = (task.tests / path).read_bytes()
            original = task.repository / path
            if info.st_size >= self.min_bytes and not (original.is_file() and original.read_bytes() == held):
                secret.add((info.st_size, hashlib.sha256(held).digest()))
        sizes = {size for size, _ in secret}
        return [
            path
            for path, info in walk_files(tree)
            if stat.S_ISREG(info.st_mode)
            and info.st_size in sizes
            and (info.st_size, hashlib.sha256((tree / path).read_bytes()).digest()) in secret
        ]
