"""What the learning report needs of one run, read from its store alone; a live run is read like a finished one.

Invariant: only finished steps count, so a step in progress changes nothing. Rewards of excluded trials do not exist.
Refuses a folder that holds no run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from engine.core.errors import ConfigError
from engine.core.records import Split, StepRecord
from engine.observe.estimates import Change, Estimate, Rewards, change, estimate, pooled
from engine.store.layout import Layout
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


def read_curves(layout: Layout) -> Curves:
    """Raises RunError where a file is damaged."""
    reader = Reader(layout)
    steps = tuple(reader.steps())
    state = reader.state() or {}
    return Curves(
        name=layout.root.resolve().name,
        phase=str(state.get("phase", "")),
        planned=state.get("steps", 0),
        wall_s=float(state.get("wall_s", 0.0)),
        steps=steps,
        rewards=tuple(_rewards(reader, record.step, "train") for record in steps),
        held_out=tuple(_rewards(reader, version, "validation") for version in range(len(steps) + 1)),
    )


def _rewards(reader: Reader, step: int, split: Split) -> Rewards:
    names = tuple(reader.trials(step, split))
    folder = reader.layout.trials(step, split).absolute()
    return _read_rewards(reader.layout.root.absolute(), step, split, names, folder.stat().st_mtime_ns if names else 0)


@lru_cache(maxsize=4096)
def _read_rewards(root: Path, step: int, split: Split, names: tuple[str, ...], changed_ns: int) -> Rewards:  # noqa: ARG001
    """Kept while the folder stays as it is: trials do not change, and a run may have thousands. `changed_ns`: a key."""
    reader, rewards = Reader(Layout(root=root)), dict[str, list[float]]()
    for name in names:
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
