"""Whether a user's task judges as it claims: its reference is resolved, and its untouched base is not.

What was found is kept in the cache under all that decides it, so a task is tried once; one that was refused is tried
again by the next `job=prepare`. Invariant: a task without a kept success is no task to train on. A task that brings no
reference is tried by its untouched base alone.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from engine.core.contracts import ImageStore, SandboxRuntime, Say
from engine.core.errors import ConfigError
from engine.core.naming import first
from engine.core.patch import make
from engine.core.paths import cache_dir
from engine.core.records import Task, Verdict
from engine.core.task_contracts import Verifier
from engine.core.together import side_by_side
from engine.core.whole import write_whole

Graders = tuple[SandboxRuntime, ImageStore, Verifier]
_HOLDS = ""
_LAYOUT = 2
"""Raise when what is tried changes."""
_NAMED = 3
"""How many failing tests are named."""
_SAY_EVERY = 20


def doubts(key: str, value: str, tasks: Sequence[Task]) -> list[ConfigError]:
    """One error for each task that was refused, and one for all that were not tried yet."""
    found = {task.id: read_finding(task) for task in tasks}
    errors = [
        ConfigError(key, value, f"task {name}: {finding}", "mend the task, or move its folder away; then job=prepare")
        for name, finding in found.items()
        if finding
    ]
    untried = [name for name, finding in found.items() if finding is None]
    if untried:
        listed = ", ".join(untried[:_NAMED]) + (", …" if len(untried) > _NAMED else "")
        problem = f"{len(untried)} of {len(tasks)} tasks were not tried yet ({listed})"
        errors.append(ConfigError(key, value, problem, "run the same command with job=prepare"))
    return errors


async def prove(tasks: Sequence[Task], graders: Graders, say: Say) -> None:
    """Try all tasks that no kept success speaks for, a few at a time."""
    left = [task for task in tasks if read_finding(task) != _HOLDS]
    done: list[str] = []

    async def one(task: Task) -> None:
        finding = await _try(task, graders)
        write_whole(_file(task), finding.encode())
        done.append(task.id)
        if finding:
            say(f"tasks: {task.id}: {finding}")
        if len(done) % _SAY_EVERY == 0 or len(done) == len(left):
            say(f"tasks: {len(done)} of {len(left)} tried")

    await side_by_side([partial(one, task) for task in left], len(os.sched_getaffinity(0)))


def read_finding(task: Task) -> str | None:
    """Why a task is refused; empty where it holds, None where it was not tried."""
    try:
        return _file(task).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


async def _try(task: Task, graders: Graders) -> str:
    runtime, images, verifier = graders
    if task.reference is not None:
        good = await verifier.grade(task, task.reference, runtime, images, f"prove-{task.id}-reference")
        if not good.resolved:
            return f"its reference does not pass ({_failing(good)})"
    untouched = await verifier.grade(task, make([]), runtime, images, f"prove-{task.id}-base")
    return "its tests pass without any change, so there is nothing to solve" if untouched.resolved else _HOLDS


def _failing(verdict: Verdict) -> str:
    """The tests that fail, or else the grader's own words."""
    failing = [test.id for test in verdict.tests if not test.ok]
    if not failing:
        return " ".join(verdict.evidence.split())[:160] or "no test was graded"
    return f"{first(failing, _NAMED)} failed"


def _file(task: Task) -> Path:
    reference = task.reference.diff if task.reference is not None else None
    artifacts = task.reference.artifacts if task.reference is not None else ()
    made = [[one.path, hashlib.sha256(one.contents).hexdigest(), one.executable] for one in artifacts]
    facts = [
        *([made] if made else []),
        _LAYOUT,
        task.fingerprint,
        reference,
        task.grade_timeout_s,
        task.memory_mb,
        task.cpus,
    ]
    return cache_dir() / "proven" / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}.txt"
