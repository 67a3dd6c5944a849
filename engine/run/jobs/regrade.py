"""`job=regrade`: a run's stored patches, graded again. Do its rewards still mean what they said?

Starts sandboxes and nothing else, and leaves the run as it is. Equal patches of one task are graded together.
Invariant: a patch is graded against the very task that it was made for (its fingerprint), or not at all. Refuses a run
whose tasks this configuration does not have.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from engine.config.built import Built
from engine.core.errors import ConfigError, EnvironmentFailure, RunError
from engine.core.naming import first
from engine.core.records import FileChange, Patch, Split, Task, Verdict
from engine.core.together import side_by_side
from engine.observe.chosen import Named, chosen
from engine.observe.curves import check_runs
from engine.observe.progress import ProgressView, make_progress
from engine.run.guard import warn
from engine.run.workbench import check_grading
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.reader import Reader

_COLUMNS = ("task", "task_fingerprint", "excluded", "resolved", "tests", "changes", "artifacts", "diff")
_SHOWN = 3
"""Tests that a line names."""


@dataclass(kw_only=True)
class _Same:
    """Trials that left the same patch of the same task."""

    task: Task
    patch: Patch
    trials: list[tuple[Named, bool, dict[str, str]]] = field(default_factory=list)
    """With each: whether it was resolved, and test → outcome, as they are stored."""


class RegradeJob:
    """Grades stored patches and compares verdicts.

    Args:
        run: folder of the run; None: the one that `from=` names, else the run of this configuration.
        split: which trials; None: all.
        step: of which step, from 0; None: of all.
        times: how often each patch is graded.
    """

    def __init__(self, *, run: str | None, split: Split | None, step: int | None, times: int) -> None:
        self.source = run
        self.split = split
        self.step = step
        self.times = times

    async def run(self, built: Built) -> int:
        """Exit code 0 when all verdicts agree. Raises RunError when one does not, after naming each."""
        root = self._root(built)
        check_runs("job.run", [root])
        images = DebianImageStore()
        check_grading(built, images)
        warn(built.config)
        reader = Reader(Layout(root=root))
        with make_progress(built.observe.progress_interval_s) as progress:
            found, others = await asyncio.to_thread(self._read, reader, built.tasks.load())
            if not found:
                way_out = f"give the run's own configuration: from={root}"
                target = built.config["tasks"]["_target_"]
                raise ConfigError("tasks", target, f"has none of the {others} graded tasks of {root}", way_out)
            await built.sandbox.start(images, f"regrade-{root.name}")
            try:
                lines = await self._grade(built, images, found, progress)
            finally:
                await asyncio.shield(built.sandbox.stop())
        for line in lines:
            print(line)
        count = sum(len(same.trials) for same in found)
        passed_over = f"; {others} of tasks that are others here were passed over" if others else ""
        print(f"{count} trials, {len(found)} different patches, graded {self.times} × each{passed_over}")
        if lines:
            raise RunError(f"{len(lines)} of {count} verdicts are not what they were; look at the tests that are named")
        print("all verdicts are what they were")
        return 0

    def _root(self, built: Built) -> Path:
        if self.source is not None:
            return Path(self.source)
        return built.written.path.parent if built.written is not None else built.directory

    def _read(self, reader: Reader, tasks: Sequence[Task]) -> tuple[list[_Same], int]:
        """What is to be graded, and how many graded trials are of tasks that are not here, or others."""
        by_id = {task.id: task for task in tasks}
        found: dict[tuple[str, Any, Any], _Same] = {}
        others = 0
        for named in chosen(reader, self.split, self.step):
            row = reader.row(named.step, named.split, named.name, _COLUMNS)
            if row["excluded"]:
                continue
            task = by_id.get(row["task"])
            if task is None or task.fingerprint != row["task_fingerprint"]:
                others += 1
                continue
            changes = tuple(FileChange(**change) for change in row["changes"])
            artifacts = reader.artifacts(row["artifacts"])
            patch = Patch(changes=changes, diff=row["diff"] or "", artifacts=artifacts)
            same = found.setdefault((task.id, changes, artifacts), _Same(task=task, patch=patch))
            same.trials.append((named, row["resolved"], {test["id"]: test["outcome"] for test in row["tests"]}))
        return list(found.values()), others

    async def _grade(
        self, built: Built, images: DebianImageStore, found: Sequence[_Same], progress: ProgressView
    ) -> list[str]:
        lines: list[str] = []
        done = 0

        async def one(number: int, same: _Same) -> None:
            nonlocal done
            for time in range(self.times):
                name = f"regrade-{number}-{time}"
                try:
                    verdict = await built.verify.grade(same.task, same.patch, built.sandbox, images, name)
                except EnvironmentFailure as failure:
                    lines.extend(f"{_name(named)}: no verdict now: {failure}" for named, *_ in same.trials)
                    break
                different = _differences(same, verdict)
                lines.extend(different)
                if different:
                    break
            done += 1
            progress.phase("grading", done, len(found), f"{len(lines)} differ")

        progress.phase("grading", 0, len(found), "")
        await side_by_side([partial(one, *each) for each in enumerate(found)], built.schedule.concurrency)
        return sorted(lines)


def _differences(same: _Same, verdict: Verdict) -> list[str]:
    """A line for each trial whose stored verdict this one is not."""
    lines = []
    now = {test.id: str(test.outcome) for test in verdict.tests}
    for named, resolved, before in same.trials:
        turned = [test for test in before if now.get(test) != before[test]]
        if resolved == verdict.resolved and not turned:
            continue
        shown = [f"{test} {before[test]} → {now.get(test, 'gone')}" for test in turned]
        why = first(shown, _SHOWN, "; ") or verdict.evidence.splitlines()[0]
        lines.append(f"{_name(named)}: reward {float(resolved):g}, now {float(verdict.resolved):g}: {why}")
    return lines


def _name(named: Named) -> str:
    return f"{named.split} step {named.step} {named.name}"
