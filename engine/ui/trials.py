"""The trials of one step by what became of them, with the times of their stages.

Invariant: a trial whose file is damaged is a line that says so; the others stand. What is read of a file is kept while
the file stays as it is, so a page that is loaded again reads what is new.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from engine.config.nearest import listed
from engine.core.errors import RunError
from engine.core.records import Split
from engine.observe.summary import quantiles
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.ui.places import SPLITS, Asked, Page, Unknown, check_inside, find_number, find_run, find_split
from engine.ui.progress import is_live, trials_of

OUTCOMES = ("resolved", "not resolved", "excluded", "damaged")
_COLUMNS = (
    *("task", "sample", "attempt", "harness", "policy_version", "termination", "excluded", "reason", "reward"),
    *("resolved", "timings", "findings", "verdict_findings"),
)
_STAGES = ("setup", "first_request", "agent", "extract", "stop", "grade")
"""In the order of a trial; others follow by name."""


def trials_page(root: Path, asked: Asked) -> Page:
    """One step of one split; the newest where none is named. `outcome`: only those."""
    reader, split = find_run(root, asked), find_split(asked)
    steps = {each: reader.rollouts(each) for each in SPLITS}
    if "split" not in asked and "step" not in asked and not steps[split] and steps["validation"]:
        split = "validation"  # a run that begins with one has nothing else to show yet
    step = find_number(asked, "step", steps[split][-1] if steps[split] else 0)
    problems: list[str] = []
    ledger = trials_of(reader, split, step, problems)
    if "step" in asked and step not in steps[split] and not ledger["planned"] and not problems:
        there = f"there are {listed(map(str, steps[split]))}" if steps[split] else "there is none yet"
        raise Unknown(f"There is no step {step} (counted from 0) of split {split!r} in this run; {there}.")
    trials = [_line(reader, step, split, name) for name in reader.trials(step, split)]
    wanted = asked.get("outcome", "")
    return {
        "run": asked["run"],
        "split": split,
        "step": step,
        "steps": steps,
        "live": bool(ledger["running"]) and is_live(reader),
        "ledger": ledger,
        "outcome": wanted,
        "stages": stage_names(trials),
        "outcomes": _by_outcome(trials),
        "trials": [trial for trial in trials if wanted in ("", trial["outcome"])],
        "problems": problems,
    }


def stage_names(trials: Sequence[Page]) -> list[str]:
    """Of all stages that any of the trials has a time of."""
    found = {name for trial in trials for name in trial["timings"]}
    return [name for name in _STAGES if name in found] + sorted(found - set(_STAGES))


def outcome(row: Mapping[str, Any]) -> str:
    """What became of a trial, of the names in OUTCOMES."""
    if row["excluded"]:
        return "excluded"
    return "resolved" if row["resolved"] else "not resolved"


def group(reader: Reader, step: int, split: Split, name: str) -> list[Page]:
    """The trials of the same task, this one among them: those that its reward is compared with."""
    task = name.rpartition("-s")[0]
    names = [other for other in reader.trials(step, split) if other.rpartition("-s")[0] == task]
    return [{key: _line(reader, step, split, one)[key] for key in ("name", "outcome", "reward")} for one in names]


def _line(reader: Reader, step: int, split: Split, name: str) -> Page:
    path = reader.layout.trials(step, split) / f"{name}.parquet"
    empty = dict.fromkeys(set(_COLUMNS) - {"verdict_findings"}) | {"timings": {}, "findings": 0}
    try:
        check_inside(reader, path)
        about = path.stat()
        row = _read(reader.layout.root, step, split, name, (about.st_mtime_ns, about.st_size))
    except (RunError, OSError) as error:  # OSError: it was set aside or deleted since the folder was read
        return empty | {"name": name, "outcome": "damaged", "problem": str(error)}
    return row | {"name": name, "outcome": outcome(row), "problem": ""}


@lru_cache(maxsize=20_000)
def _read(root: Path, step: int, split: Split, name: str, version: tuple[int, int]) -> Page:  # noqa: ARG001 (a key)
    row = Reader(Layout(root=root)).row(step, split, name, _COLUMNS)
    findings = len(row["findings"]) + len(row.pop("verdict_findings"))
    return row | {"timings": dict(row["timings"]), "findings": findings}


def _by_outcome(trials: Sequence[Page]) -> list[Page]:
    """One entry for each way in which some ended: how many, their reward, median and 90th percentile of each stage."""
    groups: dict[tuple[str, str], list[Page]] = {}
    for trial in trials:
        groups.setdefault((trial["outcome"], trial["termination"] or ""), []).append(trial)
    return [
        {
            "outcome": kind,
            "termination": termination,
            "trials": len(some),
            "reward": fmean(rewards)
            if (rewards := [one["reward"] for one in some if one["reward"] is not None])
            else None,
            "stages": {
                name: quantiles([trial["timings"][name] for trial in some if name in trial["timings"]])
                for name in stage_names(some)
            },
        }
        for (kind, termination), some in sorted(groups.items(), key=lambda item: (OUTCOMES.index(item[0][0]), item[0]))
    ]
