"""What a warm-started policy can do before reinforcement: it informs, it never blocks.

Consumes trials on training tasks, sampled as the run samples. Each is told by its patch: the right line, one of the
wrong lines that the issue offers, or junk (nothing changed, the bug again, anything else).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.core.patch import read_tree
from engine.core.records import Scored
from engine.observe.trials import trial_metrics
from engine.run.demonstrations import read_repairs


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What a warm start should reach; reported beside what it reached."""

    valid_calls: float
    """Least share of responses whose tool calls are all well-formed."""
    junk: float
    """Largest share of trials whose patch is none of the offered lines."""
    solve: tuple[float, float]
    """Lowest and highest share of solved trials: room to learn on both sides."""


def gate(scored: Sequence[Scored], goals: Goals) -> dict[str, object]:
    """The report: figures over kept trials, each with its goal and whether it is met; None where nothing was measured
    (no kept trial, no tool that was offered)."""
    kept = [one for one in scored if not one.trajectory.termination.excluded and one.verdict is not None]
    outcomes = [_outcome(one) for one in kept]
    valid = trial_metrics(kept).get("calls/valid")
    junk = outcomes.count("junk") / len(kept) if kept else None
    solve = sum(one.verdict.resolved for one in kept if one.verdict is not None) / len(kept) if kept else None
    low, high = goals.solve
    return {
        "trials": len(kept),
        "excluded": len(scored) - len(kept),
        "valid_calls": _figure(valid, f">= {goals.valid_calls}", (goals.valid_calls, 1.0)),
        "junk": _figure(junk, f"<= {goals.junk}", (0.0, goals.junk)),
        "solve": _figure(solve, f"{low} to {high}", (low, high)),
        "outcomes": {name: outcomes.count(name) for name in ("right", "wrong", "junk")},
    }


def _figure(value: float | None, goal: str, bounds: tuple[float, float]) -> dict[str, object]:
    if value is None:
        return {"value": None, "goal": goal, "met": False}
    return {"value": round(value, 4), "goal": goal, "met": bounds[0] <= value <= bounds[1]}


def gate_lines(report: Mapping[str, object]) -> list[str]:
    """The report for a person."""
    lines = [f"gate: {report['trials']} trials kept, {report['excluded']} excluded; outcomes {report['outcomes']}"]
    for name in ("valid_calls", "junk", "solve"):
        figure = report[name]
        assert isinstance(figure, dict)
        met = "met" if figure["met"] else "NOT met (the run may still learn)"
        value = figure["value"]
        shown = f"{value:.3f}, goal {figure['goal']}: {met}" if value is not None else "not measured"
        lines.append(f"gate: {name} {shown}")
    return lines


def _outcome(scored: Scored) -> str:
    """`right`, `wrong` or `junk`, by the contents of the one file that the issue names."""
    patch, task = scored.trajectory.patch, scored.trajectory.trial.task
    if patch is None or len(patch.changes) != 1:
        return "junk"
    (change,) = patch.changes
    repairs = read_repairs(task)
    if change.path != repairs.path or change.after is None:
        return "junk"
    base = read_tree(task.repository)[repairs.path][0].decode()
    after = change.after.decode("utf-8", "replace")
    if after == base.replace(repairs.buggy, repairs.right):
        return "right"
    return "wrong" if after in {base.replace(repairs.buggy, line) for line in repairs.wrong} else "junk"
