"""Pages about whole runs: all of them, the state and progress of one, its curves.

Invariant: read from the store alone, so a live run and a finished one are the same. A run is called live while it has
not ended and has given a sign of life within a minute.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.observe.curves import read_curves
from engine.observe.figures import figures
from engine.observe.headline import headline
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.ui.places import SPLITS, Asked, Page, find_run, noted, run_names

ENDED = ("finished", "failed", "interrupted")
SILENT_S = 60.0
"""Seconds without a heartbeat after which a run that has not ended is not called live; it beats every few seconds."""


def runs_page(root: Path, asked: Asked) -> Page:  # noqa: ARG001 (every page is given what was asked)
    """All runs, the one with the newest sign of life first."""
    runs = [{"name": name, **_glance(Reader(Layout(root=root / name)))} for name in run_names(root)]
    runs.sort(key=lambda run: (run["age_s"] is None, run["age_s"]))
    return {"root": str(root.absolute()), "runs": runs, "live": any(run["live"] for run in runs)}


def _glance(reader: Reader) -> Page:
    """One line about a run; a damaged state is its `problem`."""
    problems: list[str] = []
    state: Mapping[str, Any] = {}
    with noted(problems):
        state = reader.state() or {}
    ended = state.get("phase", "") in ENDED
    age = max(0.0, time.time() - float(state["heartbeat_s"])) if _is_number(state.get("heartbeat_s")) else None
    return {
        "phase": state.get("phase", ""),
        "reason": state.get("reason", ""),
        "step": state["step"] if isinstance(state.get("step"), int) else None,
        "steps": state.get("steps", 0),
        "steps_done": len(list(reader.layout.steps.glob("step=*.parquet"))),
        "policy_version": state.get("policy_version"),
        "pid": state.get("pid"),
        "started_s": state.get("started_s"),
        "heartbeat_s": state.get("heartbeat_s"),
        "age_s": age,
        "wall_s": state.get("wall_s"),
        "live": not ended and age is not None and age < SILENT_S,
        "silent": not ended and age is not None and age >= SILENT_S,
        "problem": problems[0] if problems else "",
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def state_page(root: Path, asked: Asked) -> Page:
    """What a run is doing, how far it is, what it was started with, and its alarms."""
    reader = find_run(root, asked)
    state = _glance(reader)
    problems = [state.pop("problem")] if state["problem"] else []
    metrics: Mapping[str, float] = {}
    alerts: list[dict[str, Any]] = []
    written: Mapping[str, Any] = {}
    with noted(problems):
        steps = reader.steps()
        metrics = steps[-1].metrics if steps else {}
    with noted(problems):
        alerts = reader.alerts()
    with noted(problems):
        written = reader.config() or {}
    configuration = _mapping(written.get("configuration"))
    return {
        "run": asked["run"],
        "folder": str(reader.layout.root.absolute()),
        "live": state["live"],
        "state": state,
        "trials": _trials(reader, state["step"], _mapping(configuration.get("schedule"))),
        "checkpoints": reader.checkpoints(),
        "metrics": dict(metrics),
        "alerts": alerts,
        "written": {name: value for name, value in written.items() if name != "dependencies"},
        "problems": problems,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _trials(reader: Reader, step: Any, schedule: Mapping[str, Any]) -> Page:
    """Finished trials of the open step, a retried one counted once, and how many of a split there are in all."""
    names = reader.trials(step, "train") if isinstance(step, int) else []
    planned = (schedule.get("prompts_per_step"), schedule.get("rollouts_per_prompt"))
    return {
        "step": len({name.rpartition("-a")[0] for name in names}),
        "planned": planned[0] * planned[1] if isinstance(planned[0], int) and isinstance(planned[1], int) else None,
        **{split: sum(len(reader.trials(step, split)) for step in reader.rollouts(split)) for split in SPLITS},
    }


def curves_page(root: Path, asked: Asked) -> Page:
    """The figures and headline numbers of the learning report, and every metric by step."""
    reader = find_run(root, asked)
    curves = read_curves(reader.layout)
    heads, rows = headline([curves])
    return {
        "run": asked["run"],
        "steps": [record.step + 1 for record in curves.steps],
        "headline": {"heads": heads, "rows": rows},
        "figures": [asdict(figure) for figure in figures([curves])],
        "metrics": {name: curves.series(name) for name in curves.metrics()},
    }
