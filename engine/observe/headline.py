"""The few numbers that say what a run came to, as a table of strings: for a page, for a terminal."""

from collections.abc import Callable, Mapping, Sequence

from engine.observe.curves import Curves
from engine.observe.digits import below
from engine.observe.estimates import Change, Estimate

Table = tuple[list[str], list[list[str]]]
"""Column heads, and rows of as many cells."""

NONE = "–"


def headline(runs: Sequence[Curves]) -> Table:
    """One column a run, one row a number."""
    rows = [[title, *(show(run) for run in runs)] for title, show in _ROWS.items()]
    return ["", *(run.name for run in runs)], [row for row in rows if any(cell != NONE for cell in row[1:])]


def signed(change: Change) -> str:
    """`+0.161 (+0.102 to +0.220)`."""
    return f"{change.difference:+.3f} ({change.low:+.3f} to {change.high:+.3f})"


def spread(estimate: Estimate) -> str:
    """`0.458 (0.410 to 0.507), 384 trials of 48 tasks`."""
    some = "trial" if estimate.trials == 1 else "trials"
    tasks = "task" if estimate.tasks == 1 else "tasks"
    interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.mean:.3f} ({interval}), {estimate.trials} {some} of {estimate.tasks} {tasks}"


def _steps(run: Curves) -> str:
    """`10 of 24, rollout` while some are left."""
    count = len(run.steps)
    return f"{count} of {run.planned}, {run.phase}" if run.planned > count else str(count)


def _difference(run: Curves) -> str:
    return signed(run.learned) if run.learned is not None else NONE


def _start(run: Curves) -> str:
    if run.learned is None:
        return NONE
    return f"{spread(run.learned.first)}, {_range(1, run.windows[0])}"


def _end(run: Curves) -> str:
    if run.learned is None:
        return NONE
    count = len(run.steps)
    return f"{spread(run.learned.last)}, {_range(count - run.windows[1] + 1, count)}"


def _range(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _only(run: Curves) -> str:
    """The reward of a run too short to be compared with itself."""
    return spread(run.training[0]) if len(run.steps) == 1 and run.training[0] is not None else NONE


def _held_out(which: int) -> Callable[[Curves], str]:
    def show(run: Curves) -> str:
        measured = [(version, one) for version, one in enumerate(run.validation) if one is not None]
        if not measured or (which == 0 and len(measured) < 2):
            return NONE
        version, one = measured[which]
        return f"{spread(one)}, {f'after step {version}' if version else 'before step 1'}"

    return show


def _held_out_change(run: Curves) -> str:
    return signed(run.generalised) if run.generalised is not None else NONE


def _first_and_last(metric: str, form: str) -> Callable[[Curves], str]:
    def show(run: Curves) -> str:
        values = [value for value in run.series(metric) if value is not None]
        if not values:
            return NONE
        return format(values[0], form) if len(values) == 1 else f"{values[0]:{form}} → {values[-1]:{form}}"

    return show


def _extreme(metric: str, pick: Callable[[Sequence[float]], float], form: str) -> Callable[[Curves], str]:
    def show(run: Curves) -> str:
        values = [value for value in run.series(metric) if value is not None]
        return format(pick(values), form) if values else NONE

    return show


def _smallest_correlation(run: Curves) -> str:
    values = [value for value in run.series("alignment/pearson_r") if value is not None]
    return below(min(values), 7) if values else NONE


def _tokens(run: Curves) -> str:
    pairs = list(zip(run.series("tokens/sampled"), run.series("tokens/trained"), strict=True))
    if not any(sampled is not None for sampled, _ in pairs):
        return NONE
    sampled, trained = (sum(value or 0.0 for value in values) for values in zip(*pairs, strict=True))
    return f"{sampled:,.0f} / {trained:,.0f}" + (" (equal at every step)" if all(a == b for a, b in pairs) else "")


def _trials(run: Curves) -> str:
    kept, excluded = (sum(value or 0.0 for value in run.series(f"trials/{name}")) for name in ("kept", "excluded"))
    return f"{kept:.0f} / {excluded:.0f}" if kept or excluded else NONE


_ROWS: Mapping[str, Callable[[Curves], str]] = {
    "steps": _steps,
    "reward": _only,
    "reward at the start": _start,
    "reward at the end": _end,
    "difference": _difference,
    "held-out solve rate, first": _held_out(0),
    "held-out solve rate, last": _held_out(-1),
    "held-out difference": _held_out_change,
    "entropy, nats": _first_and_last("train/entropy", ".3f"),
    "KL to the start, nats per token": _first_and_last("loss/kl", ".2e"),
    "answers with valid calls": _first_and_last("calls/valid", ".1%"),
    "trials with an empty patch": _first_and_last("trials/empty_patch", ".1%"),
    "smallest Pearson r": _smallest_correlation,
    "largest |Δ log p|": _extreme("alignment/max_abs_dlogp", max, ".1e"),
    "tokens sampled / trained": _tokens,
    "training trials kept / excluded": _trials,
    "wall time": lambda run: f"{run.wall_s / 60:.1f} min" if run.wall_s else NONE,
}
