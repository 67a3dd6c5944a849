"""Whether a run lives, and the trials of one step by what the ledger says of them: planned, running, ended.

Invariant: states are the ledger's own, each attempt counted. A trial is done once its newest attempt has ended.
"""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from engine.core.records import Split
from engine.store.ledger import TrialState, read_ledger
from engine.store.reader import Reader
from engine.ui.places import Page, noted

ENDED = ("finished", "failed", "interrupted")
"""Phases that a run does not leave by itself."""
SILENT_S = 60.0
"""Seconds without a heartbeat after which a run that has not ended is not called live; it beats every few seconds."""
STATES: tuple[TrialState, ...] = ("pending", "running", "finished", "excluded", "trained")
_OPEN = ("pending", "running")


def age_s(state: Mapping[str, Any]) -> float | None:
    """Seconds since the last sign of life; None where there is none, or a damaged file says something else."""
    beat = state.get("heartbeat_s")
    known = isinstance(beat, int | float) and not isinstance(beat, bool)
    return max(0.0, time.time() - float(beat)) if known else None  # type: ignore[arg-type]


def lives(state: Mapping[str, Any]) -> bool:
    """A run has not ended and has given a sign of life within a minute."""
    age = age_s(state)
    return state.get("phase", "") not in ENDED and age is not None and age < SILENT_S


def is_live(reader: Reader) -> bool:
    """The same of a run whose state may be damaged."""
    state: Mapping[str, Any] = {}
    with noted([]):
        state = reader.state() or {}
    return lives(state)


def trials_now(reader: Reader, state: Mapping[str, Any], problems: list[str]) -> Page | None:
    """Those of the phase that a run is in; None where it has none, or the run keeps no ledger."""
    split: Split = "validation" if state["phase"] == "validation" else "train"
    step: Any = {"rollout": state["step"], "validation": state["policy_version"]}.get(state["phase"])
    found = trials_of(reader, split, step, problems) if isinstance(step, int) else None
    return found if found and found["planned"] else None


def trials_of(reader: Reader, split: Split, step: int, problems: list[str]) -> Page:
    """Of one step of one split: states and how many are in each, what runs now, how many trials there are to be."""
    states: dict[str, TrialState] = {}
    with noted(problems):
        states = {name: state for (of, name), state in read_ledger(reader.layout, step).items() if of == split}
    newest: dict[str, tuple[int, TrialState]] = {}
    for name, state in states.items():
        trial, _, attempt = name.rpartition("-a")
        newest[trial] = max(newest.get(trial, (-1, state)), (int(attempt) if attempt.isdecimal() else 0, state))
    counts = Counter(states.values())
    return {
        "split": split,
        "step": step,
        "planned": len(newest),
        "done": sum(state not in _OPEN for _, state in newest.values()),
        "states": {state: counts[state] for state in STATES if counts[state]},
        "running": sorted(name for name, state in states.items() if state == "running"),
    }
