"""The ledger: what became of every trial, one line for each change of its state, written ahead of the act.

    pending → running → finished → trained        running → pending    the process that ran it died
                      → excluded                  trained → finished   its update died with the process
                                                  finished, excluded → pending   its file is gone
                                                  any but trained → excluded     an earlier attempt took its place

One file per step, `ledger/step=N.jsonl`, only ever appended to; the trial's own file holds what it came to, a step's
checkpoint that it was trained. Invariant: a trial is in one state, and reaches it by an arrow above. A line that was
cut by a kill is dropped. Refuses any other change: a trial that runs twice or is trained twice is a defect.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from engine.core.errors import RunError
from engine.core.records import Split
from engine.core.whole import append_lines
from engine.store.layout import Layout, numbered

TrialState = Literal["pending", "running", "finished", "excluded", "trained"]
Entry = tuple[Split, str]
"""Split and trial key: names one trial of a step."""

_ARROWS: Mapping[TrialState | None, frozenset[TrialState]] = {
    None: frozenset({"pending"}),
    "pending": frozenset({"running", "excluded"}),
    "running": frozenset({"finished", "excluded", "pending"}),
    "finished": frozenset({"trained", "excluded", "pending"}),
    "excluded": frozenset({"pending"}),
    "trained": frozenset({"finished"}),
}


class Ledger:
    """Of one run directory, written by the process that holds it. Safe to call from threads."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._steps: dict[int, dict[Entry, TrialState]] = {}

    def state(self, step: int, entry: Entry) -> TrialState | None:
        """None: not planned yet."""
        with self._lock:
            return self._opened(step).get(entry)

    def states(self, step: int) -> dict[Entry, TrialState]:
        with self._lock:
            return dict(self._opened(step))

    def move(self, step: int, entries: Sequence[Entry], state: TrialState, reason: str = "") -> None:
        """Write that trials enter a state; all or, where the disk takes no more, none that is read again.

        Raises RunError for a change that no arrow allows."""
        with self._lock:
            known = self._opened(step)
            for entry in entries:
                if state not in _ARROWS[known.get(entry)]:
                    raise RunError(
                        f"ledger: trial {entry[1]} of step {step} is {known.get(entry)} and cannot be {state}"
                    )
            lines = [
                {"at_s": round(time.time(), 3), "split": split, "trial": trial, "state": state, "reason": reason}
                for split, trial in entries
            ]
            append_lines(self._layout.ledger(step), "".join(json.dumps(line) + "\n" for line in lines))
            known.update(dict.fromkeys(entries, state))

    def settle(self, trained: int) -> None:
        """Agree with the checkpoints: the updates of step `trained` and of later ones are not on disk."""
        for step in (step for step in ledger_steps(self._layout) if step >= trained):
            lost = [entry for entry, state in self.states(step).items() if state == "trained"]
            if lost:
                self.move(step, lost, "finished", "its update was lost with the process that made it")

    def _opened(self, step: int) -> dict[Entry, TrialState]:
        if step not in self._steps:
            self._steps[step] = read_ledger(self._layout, step)
        return self._steps[step]


def read_ledger(layout: Layout, step: int) -> dict[Entry, TrialState]:
    """The last state of each trial of a step, of a live run too. Raises RunError where the file is damaged."""
    path = layout.ledger(step)
    states: dict[Entry, TrialState] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return states
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # cut by a kill, or empty
        if not _is_entry(fields):
            way_out = "restore it from a copy, or set the run aside with run.fresh=true"
            raise RunError(f"{path} is damaged (line {number} is no state of a trial); {way_out}")
        states[fields["split"], fields["trial"]] = fields["state"]
    return states


def kept_out(layout: Layout, step: int) -> frozenset[Entry]:
    """Trials of a step that count for nothing: their files tell all but one kind, those whose task was quarantined."""
    return frozenset(entry for entry, state in read_ledger(layout, step).items() if state == "excluded")


def _is_entry(fields: Any) -> bool:
    if not isinstance(fields, dict):
        return False
    words = [fields.get(name) for name in ("split", "trial", "state")]
    return all(isinstance(word, str) for word in words) and words[2] in _ARROWS


def ledger_steps(layout: Layout) -> list[int]:
    """Steps that have a ledger, in order."""
    return list(numbered(layout.ledgers, "step=", ".jsonl"))


def count_states(layout: Layout) -> dict[str, dict[str, int]]:
    """Split → state → number of trials, over the whole run; each attempt is a trial."""
    counts: dict[str, Counter[str]] = {}
    for step in ledger_steps(layout):
        for (split, _), state in read_ledger(layout, step).items():
            counts.setdefault(split, Counter())[state] += 1
    return {split: dict(sorted(count.items())) for split, count in sorted(counts.items())}
