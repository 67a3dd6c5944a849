"""`summary.json`: what a run came to, computed from the store alone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from engine.core.records import StepRecord
from engine.observe.curves import read_curves
from engine.store.ledger import kept_out
from engine.store.reader import Reader


def slope_t(values: Sequence[float]) -> float | None:
    """t statistic of the slope of `values` over their index (ordinary least squares).

    None where it is not defined: fewer than three values, or values on one straight line.
    """
    count = len(values)
    if count < 3:
        return None
    x = np.arange(count, dtype=np.float64)
    y = np.asarray(values, dtype=np.float64)
    x -= x.mean()
    spread = float((x**2).sum())
    slope = float((x * (y - y.mean())).sum()) / spread
    residual = float(((y - y.mean() - slope * x) ** 2).sum())
    if residual <= 1e-18:
        return None
    return slope / float(np.sqrt(residual / (count - 2) / spread))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile, in the unit of the values."""
    return {"p50": float(np.percentile(values, 50)), "p90": float(np.percentile(values, 90))}


def _series(steps: Sequence[StepRecord], name: str) -> list[float]:
    return [record.metrics[name] for record in steps if name in record.metrics]


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def summarise(reader: Reader, wall_s: float) -> dict[str, Any]:
    """The contract's summary: counts every attempt that was started, in training and in validation.

    `learning`: the last steps against the first, and the last validation against the first, with 95 % intervals."""
    steps = reader.steps()
    rewards = _series(steps, "reward/mean")
    started = kept = 0
    excluded: Counter[str] = Counter()
    stages: dict[str, list[float]] = {}
    for row in _trials(reader, len(steps)):
        started += 1
        if row["excluded"] or row["quarantined"]:
            excluded[row["termination"] if row["excluded"] else "quarantined"] += 1
        else:
            kept += 1
        for name, seconds in row["timings"]:
            stages.setdefault(name, []).append(seconds)
    gaps = _series(steps, "alignment/max_abs_dlogp")
    curves = read_curves(reader.layout)
    return {
        "steps": len(steps),
        "trials": {"started": started, "kept": kept, "excluded": dict(excluded)},
        "reward": {
            "first": rewards[0] if rewards else None,
            "last": rewards[-1] if rewards else None,
            "slope_t": slope_t(rewards),
            "by_step": rewards,
        },
        "validation": _validation(steps),
        "learning": {
            "windows": curves.windows,
            "training": None if curves.learned is None else asdict(curves.learned),
            "held_out": None if curves.generalised is None else asdict(curves.generalised),
        },
        "alignment": {
            "pearson_r_median": _median(_series(steps, "alignment/pearson_r")),
            "kl_median": _median(_series(steps, "alignment/kl")),
            "max_abs_dlogp": max(gaps) if gaps else None,
        },
        "tokens": {
            "sampled": int(sum(_series(steps, "tokens/sampled"))),
            "trained": int(sum(_series(steps, "tokens/trained"))),
        },
        "stages": {name: quantiles(values) for name, values in sorted(stages.items())},
        "wall_s": wall_s,
    }


def _trials(reader: Reader, steps: int) -> Iterator[dict[str, Any]]:
    """Trials of the finished steps; validations bear the number of updates before them, from 0 to `steps`."""
    columns = ("excluded", "termination", "timings")
    for step in range(steps):
        out = kept_out(reader.layout, step)
        for name in reader.trials(step, "train"):
            yield reader.row(step, "train", name, columns) | {"quarantined": ("train", name) in out}
    for version in range(steps + 1):
        for row in reader.rows(version, "validation", columns):
            yield row | {"quarantined": False}


def _validation(steps: Sequence[StepRecord]) -> Mapping[str, float]:
    """Mean held-out reward by the number of steps trained when it was measured."""
    rewards = {}
    for record in steps:
        for name, count in (("validation/reward_before", record.step), ("validation/reward", record.step + 1)):
            if name in record.metrics:
                rewards[str(count)] = record.metrics[name]
    return rewards
