"""How many of so many rollouts solved each task of a run, read from its store alone, live or finished.

    finished trials → one rollout a sample (its kept attempt, or none) → by task, in the order of steps → the first `of`

Invariant: an excluded trial is no rollout: neither one whose sandbox broke, nor one whose task the run quarantined
(`engine.store.ledger`). A task's counts are of one fingerprint. Every task is counted by equally many rollouts, its
first ones, so that tasks and runs compare; one with fewer is told apart.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.core.errors import RunError
from engine.core.records import Split
from engine.observe.chosen import Named
from engine.observe.estimates import Estimate, estimate, wilson
from engine.store.ledger import Entry, TrialState, read_ledger
from engine.store.reader import Reader
from engine.tasks.counts import SolveCount

_COLUMNS = ("epoch", "task", "task_fingerprint", "sample", "policy_version", "excluded", "resolved")
Done = Callable[[int], None]
"""Hears after each trial how many are read."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sample of a task."""

    step: int
    version: int
    solved: bool | None
    """None: excluded, with all its attempts."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A task as a run tried it."""

    task: str
    fingerprint: str
    rollouts: tuple[Rollout, ...]
    """In the order of steps and samples."""

    @property
    def kept(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.solved is not None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run's rollouts by task."""

    run: str
    checkpoint: str | None
    tasks: tuple[Tried, ...]


@dataclass(frozen=True, kw_only=True)
class Share:
    """Tasks of one solve count among all that were tried often enough, with Wilson's 95 % interval."""

    tasks: tuple[str, ...]
    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """How hard a pool was for a run."""

    name: str
    of: int
    counts: tuple[SolveCount, ...]
    """Of every task, by at most `of` rollouts."""

    @property
    def enough(self) -> list[SolveCount]:
        return [count for count in self.counts if count.of == self.of]

    @property
    def few(self) -> list[SolveCount]:
        return [count for count in self.counts if count.of < self.of]

    @property
    def versions(self) -> tuple[int, int]:
        """Lowest and highest policy version of the rollouts."""
        lows, highs = zip(*(count.policy_versions for count in self.counts), strict=True)
        return min(lows), max(highs)

    def shares(self) -> list[Share] | None:
        """For each solve count from 0 to `of`; None where no task was tried often enough."""
        enough = self.enough
        if not enough:
            return None
        found = []
        for solved in range(self.of + 1):
            tasks = tuple(count.task for count in enough if count.solved == solved)
            share = len(tasks) / len(enough)
            low, high = wilson(share, len(enough))
            found.append(Share(tasks=tasks, share=share, low=low, high=high))
        return found

    def pass_rate(self) -> Estimate | None:
        """Mean over these tasks."""
        return estimate(
            {f"{one.task} {one.fingerprint}": [1.0] * one.solved + [0.0] * (one.of - one.solved) for one in self.enough}
        )


def measure(reader: Reader, trials: Sequence[Named], done: Done) -> Measured:
    """Raises RunError on a damaged trial; one that a live run takes back meanwhile is passed over."""
    config = reader.config() or {}
    checkpoint = config.get("checkpoint")
    states = cache(lambda step: read_ledger(reader.layout, step))
    samples: dict[tuple[str, str], dict[tuple[int, Split, int, int], Rollout]] = {}
    for number, named in enumerate(trials, 1):
        row = _row(reader, named)
        if row is not None:
            place = (named.step, named.split, row["epoch"], row["sample"])
            task = samples.setdefault((row["task"], row["task_fingerprint"]), {})
            solved = row["resolved"] if _is_kept(row, named, states(named.step)) else None
            if solved is not None or place not in task:
                task[place] = Rollout(step=named.step, version=row["policy_version"], solved=solved)
        done(number)
    tasks = tuple(
        Tried(task=task, fingerprint=fingerprint, rollouts=tuple(rollouts[place] for place in sorted(rollouts)))
        for (task, fingerprint), rollouts in sorted(samples.items())
    )
    checkpoint = checkpoint if isinstance(checkpoint, str) else None
    return Measured(run=reader.layout.root.resolve().name, checkpoint=checkpoint, tasks=tasks)


def _is_kept(row: dict[str, Any], named: Named, states: dict[Entry, TrialState]) -> bool:
    return not row["excluded"] and states.get((named.split, named.name)) != "excluded"


def _row(reader: Reader, named: Named) -> dict[str, Any] | None:
    """None where the attempt was taken back since."""
    try:
        return reader.row(named.step, named.split, named.name, _COLUMNS)
    except RunError:
        if named.name in reader.trials(named.step, named.split):
            raise
        return None


def usual(runs: Sequence[Measured]) -> int:
    """As many kept rollouts as most tasks have when a step asks them: the smaller number where two are as common.

    Raises RunError where none was kept."""
    groups = Counter(
        number
        for run in runs
        for task in run.tasks
        for number in Counter(rollout.step for rollout in task.kept).values()
    )
    if not groups:
        raise RunError("every trial of these runs was excluded, so nothing is known of their tasks")
    return min(groups, key=lambda number: (-groups[number], number))


def difficulty(run: Measured, name: str, of: int) -> Difficulty:
    """The solve counts of a run's tasks, by the first `of` kept rollouts of each."""
    return Difficulty(name=name, of=of, counts=tuple(_count(run, task, of) for task in run.tasks))


def _count(run: Measured, task: Tried, of: int) -> SolveCount:
    counted = task.kept[:of]
    versions = [rollout.version for rollout in counted or task.rollouts]
    return SolveCount(
        task=task.task,
        fingerprint=task.fingerprint,
        solved=sum(rollout.solved is True for rollout in counted),
        of=len(counted),
        excluded=len(task.rollouts) - len(task.kept),
        run=run.run,
        checkpoint=run.checkpoint,
        policy_versions=(min(versions), max(versions)),
    )
