"""Means of rewards with 95 % intervals, from trials grouped by task. Deterministic.

Trials of one task resemble each other, so the interval is a bootstrap over tasks (each drawn whole, with all its
trials; 2,000 resamples, percentiles). Where that tells nothing (one task, or tasks whose means are all equal) it is
Wilson's binomial interval over the trials, for rewards within 0 and 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
METHOD = (
    "95 % interval: bootstrap over tasks (2,000 resamples); Wilson's binomial where there is one task or all tasks "
    "have the same mean"
)

Rewards = Mapping[str, Sequence[float]]
"""Task → the rewards of its kept trials."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float
    trials: int
    tasks: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """How far a second mean lies above a first.

    The interval is joined from those of the two means (Newcombe 1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873),
    as if they were independent: cautious where they share tasks."""

    first: Estimate
    last: Estimate
    difference: float
    low: float
    high: float


def estimate(rewards: Rewards) -> Estimate | None:
    """None where there is no trial."""
    sums, counts = _by_task(rewards)
    if not len(sums):
        return None
    mean = float(sums.sum() / counts.sum())
    trials = int(counts.sum())
    # One task too; compared without a division, which would round equal means apart.
    equal = all(sums * counts[0] == sums[0] * counts)
    low, high = wilson(mean, trials) if equal else _bootstrap(sums, counts)
    return Estimate(mean=mean, low=low, high=high, trials=trials, tasks=len(sums))


def change(first: Rewards, last: Rewards) -> Change | None:
    """None where either side holds no trial."""
    before, after = estimate(first), estimate(last)
    if before is None or after is None:
        return None
    difference = after.mean - before.mean
    return Change(
        first=before,
        last=after,
        difference=difference,
        low=difference - math.hypot(after.mean - after.low, before.high - before.mean),
        high=difference + math.hypot(after.high - after.mean, before.mean - before.low),
    )


def pooled(steps: Sequence[Rewards]) -> dict[str, list[float]]:
    """The trials of several steps by task."""
    result: dict[str, list[float]] = {}
    for rewards in steps:
        for task, values in rewards.items():
            result.setdefault(task, []).extend(values)
    return result


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `count` (Wilson 1927, doi:10.1080/01621459.1927.10502953)."""
    z = 1.959964
    centre = share + z * z / (2 * count)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _by_task(rewards: Rewards) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of rewards of each task that has any, by name: the order of reading changes nothing."""
    held = [values for _, values in sorted(rewards.items()) if len(values)]
    return np.array([sum(values) for values in held], float), np.array([len(values) for values in held], float)


def _bootstrap(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), (2.5, 97.5))
    return float(low), float(high)
