"""Pages about whole runs: all of them; of one its state and progress, curves, numbers, and what it was started with.

Invariant: read from the store alone, so a live run and a finished one are the same. A run is called live while it has
not ended and has given a sign of life within a minute.
"""

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.core.records import Split
from engine.observe.curves import read_curves
from engine.observe.figures import figures
from engine.observe.headline import headline
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.ui.places import SPLITS, Asked, Page, check_inside, find_number, find_run, noted, run_names
from engine.ui.progress import ENDED, age_s, is_live, lives, trials_now

PATIENCE_S = 4.0
"""Seconds that the page of curves reads trials before it is shown with what it has; the next one goes on from there."""
_SETTLED_NS = 10**9
"""Nanoseconds after which a folder that changes again bears another time."""
AT_ONCE = 10
"""Steps on one page of numbers."""


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
    last = None
    with noted([]):  # it is told on the run's own page
        last = reader.last_step()
    ended = state.get("phase", "") in ENDED
    age, live = age_s(state), lives(state)
    return {
        "phase": state.get("phase", "") or ("a warm start's gate" if reader.layout.root.parent.name == "gate" else ""),
        "reason": state.get("reason", ""),
        "step": state["step"] if isinstance(state.get("step"), int) else None,
        "steps": state.get("steps", 0),
        "steps_done": len(reader.step_files()),
        "reward": last.metrics.get("reward/mean") if last else None,
        "policy_version": state.get("policy_version"),
        "pid": state.get("pid"),
        "started_s": state.get("started_s"),
        "heartbeat_s": state.get("heartbeat_s"),
        "age_s": age,
        "wall_s": state.get("wall_s"),
        "live": live,
        "silent": age is not None and not ended and not live,
        "problem": problems[0] if problems else "",
    }


def state_page(root: Path, asked: Asked) -> Page:
    """What a run is doing, how far it is, its alarms, and the metrics of its last step."""
    reader = find_run(root, asked)
    state = _glance(reader)
    problems = [state.pop("problem")] if state["problem"] else []
    metrics: Mapping[str, float] = {}
    alerts: list[dict[str, Any]] = []
    with noted(problems):
        last = reader.last_step()
        metrics = last.metrics if last else {}
    with noted(problems):
        alerts = reader.alerts()
    return {
        "run": asked["run"],
        "folder": str(reader.layout.root.absolute()),
        "live": state["live"],
        "state": state,
        "now": trials_now(reader, state, problems),
        "trials": {split: _count(reader, split) for split in SPLITS},
        "checkpoints": reader.checkpoints(),
        "metrics": dict(metrics),
        "alerts": alerts,
        "problems": problems,
    }


def _count(reader: Reader, split: Split) -> int:
    """Trials on disk, each attempt counted."""
    return sum(_count_in(reader.layout.trials(step, split)) for step in reader.rollouts(split))


def _count_in(folder: Path) -> int:
    try:
        changed_ns = folder.stat().st_mtime_ns
        if time.time_ns() - changed_ns < _SETTLED_NS:
            return _count_anew(folder, changed_ns)
        return _count_kept(folder, changed_ns)
    except OSError:  # it was deleted since its name was read
        return 0


def _count_anew(folder: Path, changed_ns: int) -> int:  # noqa: ARG001 (a key)
    return sum(name.endswith(".parquet") for name in os.listdir(folder))  # noqa: PTH208 (faster, of many folders)


_count_kept = lru_cache(maxsize=20_000)(_count_anew)


def configuration_page(root: Path, asked: Asked) -> Page:
    """What a run was started with: configuration, code version, dependencies, data."""
    reader = find_run(root, asked)
    problems: list[str] = []
    written: Mapping[str, Any] = {}
    with noted(problems):
        check_inside(reader, reader.layout.config)
        written = reader.config() or {}
    return {"run": asked["run"], "written": dict(written), "problems": problems}


def curves_page(root: Path, asked: Asked) -> Page:
    """The figures and headline numbers of the learning report, and every metric by step."""
    reader = find_run(root, asked)
    curves = read_curves(reader.layout, PATIENCE_S)
    heads, rows = headline([curves])
    return {
        "run": asked["run"],
        "live": bool(curves.unread) or is_live(reader),
        "steps": [record.step + 1 for record in curves.steps],
        "unread": curves.unread,
        "headline": {"heads": heads, "rows": [] if curves.unread else rows},
        "figures": [dict(vars(figure)) for figure in figures([curves])],
        "metrics": {name: curves.series(name) for name in curves.metrics()},
    }


def numbers_page(root: Path, asked: Asked) -> Page:
    """Every metric of some steps; of the newest where `start`, counted from 0, names no other."""
    reader = find_run(root, asked)
    records = reader.steps()
    start = find_number(asked, "start", max(0, len(records) - AT_ONCE))
    shown = records[start : start + AT_ONCE]
    names = list(dict.fromkeys(name for record in shown for name in record.metrics))
    return {
        "run": asked["run"],
        "total": len(records),
        "start": start,
        "at_once": AT_ONCE,
        "steps": [record.step + 1 for record in shown],
        "metrics": {name: [record.metrics.get(name) for record in shown] for name in names},
    }
