"""What the learning report needs of one run, read from its store alone; a live run is read like a finished one.

Invariant: only finished steps count, so a step in progress changes nothing. Rewards of excluded trials do not exist,
quarantined ones included.
Refuses a folder that holds no run.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from engine.core.errors import ConfigError
from engine.core.records import Split, StepRecord
from engine.observe.estimates import Change, Estimate, Rewards, change, estimate, pooled
from engine.store.layout import Layout
from engine.store.ledger import kept_out
from engine.store.reader import Reader

FIRST, LAST = 4, 6
"""Steps at the start and at the end of a run whose means are compared."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """One run, step by step."""

    name: str
    phase: str
    """Of `state.json`: finished, rollout, …"""
    planned: int
    """Steps that the run is to have; 0: not known."""
    wall_s: float
    steps: tuple[StepRecord, ...]
    rewards: tuple[Rewards, ...]
    """Training rewards of each step, sampled before its update."""
    held_out: tuple[Rewards, ...]
    """Validation rewards by the number of updates before them, from 0 to all; empty where there was none."""
    unread: int
    """Steps and validations whose rewards are empty because there was no time to read their trials."""

    @cached_property
    def training(self) -> tuple[Estimate | None, ...]:
        return tuple(estimate(rewards) for rewards in self.rewards)

    @cached_property
    def validation(self) -> tuple[Estimate | None, ...]:
        return tuple(estimate(rewards) for rewards in self.held_out)

    @property
    def windows(self) -> tuple[int, int]:
        """How many steps the first and the last window hold: 4 and 6, fewer where that would overlap."""
        count = len(self.steps)
        first = min(FIRST, count // 2)
        return first, min(LAST, count - first)

    @cached_property
    def learned(self) -> Change | None:
        """Mean training reward of the last window against the first; None before there are two steps."""
        first, last = self.windows
        if not first:
            return None
        return change(pooled(self.rewards[:first]), pooled(self.rewards[-last:]))

    @cached_property
    def generalised(self) -> Change | None:
        """The last validation against the first; None before there are two."""
        held = [rewards for rewards in self.held_out if rewards]
        return change(held[0], held[-1]) if len(held) > 1 else None

    def series(self, metric: str) -> list[float | None]:
        """A metric by step; None where it is not defined."""
        return [record.metrics.get(metric) for record in self.steps]

    def metrics(self) -> list[str]:
        """Names of all metrics that any step has."""
        return sorted({name for record in self.steps for name in record.metrics})


def read_curves(layout: Layout, within_s: float = math.inf) -> Curves:
    """Raises RunError where a file is damaged.

    `within_s`: after so many seconds the trials of older steps are left unread. What is read is kept, so asking again
    goes on from there: a run of a thousand steps has tens of thousands of trials."""
    reader = Reader(layout)
    steps = tuple(reader.steps())
    state = reader.state() or {}
    until = time.monotonic() + within_s
    read: dict[tuple[Split, int], Rewards] = {}
    places: list[tuple[Split, int]] = [("validation", version) for version in range(len(steps) + 1)]
    places += [("train", record.step) for record in steps]
    for split, step in sorted(places, key=lambda place: place[1], reverse=True):
        if time.monotonic() < until:
            read[split, step] = _rewards(reader, step, split)
    return Curves(
        name=layout.root.resolve().name,
        phase=str(state.get("phase", "")),
        planned=state.get("steps", 0),
        wall_s=float(state.get("wall_s", 0.0)),
        steps=steps,
        rewards=tuple(read.get(("train", record.step), {}) for record in steps),
        held_out=tuple(read.get(("validation", version), {}) for version in range(len(steps) + 1)),
        unread=len(places) - len(read),
    )


def _rewards(reader: Reader, step: int, split: Split) -> Rewards:
    names = tuple(reader.trials(step, split))
    if not names:
        return {}
    folder = reader.layout.trials(step, split).absolute()
    changed = (folder.stat().st_mtime_ns, _changed_ns(reader.layout.ledger(step)))
    return _read_rewards(reader.layout.root.absolute(), step, split, names, changed)


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@lru_cache(maxsize=20_000)
def _read_rewards(
    root: Path,
    step: int,
    split: Split,
    names: tuple[str, ...],
    changed: tuple[int, int],  # noqa: ARG001 (a key)
) -> Rewards:
    """Kept while folder and ledger stay as they are: trials do not change, and a run may have thousands."""
    reader, rewards = Reader(Layout(root=root)), dict[str, list[float]]()
    out = kept_out(reader.layout, step)
    for name in names:
        if (split, name) in out:
            continue
        row = reader.row(step, split, name, ("task", "reward"))
        if row["reward"] is not None:
            rewards.setdefault(row["task"], []).append(row["reward"])
    return rewards


def is_run(root: Path) -> bool:
    """Whether a run was ever started in a folder; other programs name a file `config.yaml` too."""
    layout = Layout(root=root)
    if layout.state.is_file():
        return True
    return layout.config.is_file() and b"\nconfiguration_hash:" in layout.config.read_bytes()


def check_runs(key: str, roots: Sequence[Path]) -> None:
    """Raise ConfigError on a folder that holds no run, or one named twice."""
    seen: set[Path] = set()
    for root in roots:
        if not root.is_dir():
            raise ConfigError(
                key, str(root), "there is no such folder", "name a run's folder (the last line it prints)"
            )
        if not is_run(root):
            problem = "this folder holds no run (neither state.json nor a run's config.yaml)"
            raise ConfigError(key, str(root), problem, "name a run's folder (the last line it prints)")
        if root.resolve() in seen:
            raise ConfigError(key, str(root), "named twice", "name each run once")
        seen.add(root.resolve())
