"""Whether the store holds all that its checkpoints and its ledger say was done.

Refuses, naming the file and the way out, a run in which somebody deleted or added something: its figures would be those
of another run.
"""

from collections.abc import Mapping

from engine.core.errors import RunError
from engine.store.layout import Layout, numbered
from engine.store.ledger import Entry, TrialState, read_ledger

_RESTORE = "restore it from a copy, or set the run aside with run.fresh=true"


def check_checkpoints(layout: Layout, done: int) -> int:
    """How many steps have records, of which checkpoint `done` is the newest. Raises RunError where none is left, though
    more steps are done than the one that may have been cut off: nothing is deleted for what may be a missing disk."""
    recorded = max(numbered(layout.steps, "step=", ".parquet"), default=-1) + 1
    if done == 0 and recorded > 1:
        problem = f"{layout.checkpoints} holds no checkpoint, though {recorded} steps have records"
        raise RunError(f"{problem}; {_RESTORE}")
    return recorded


def check_complete(layout: Layout, steps: int) -> None:
    """Look at the first `steps` steps, and at validations before and between them. Raises RunError."""
    for step in range(steps):
        if not layout.step(step).exists():
            raise RunError(
                f"{layout.step(step)} is missing, though checkpoint {step + 1} says that it is done; {_RESTORE}"
            )
        for trial, attempts in _by_trial(read_ledger(layout, step)).items():
            _check_trial(layout, step, trial, attempts)


def _by_trial(states: Mapping[Entry, TrialState]) -> dict[Entry, dict[str, TrialState]]:
    """Split and trial without its attempt → attempts → state."""
    trials: dict[Entry, dict[str, TrialState]] = {}
    for (split, name), state in states.items():
        trials.setdefault((split, name.rpartition("-a")[0]), {})[name] = state
    return trials


def _check_trial(layout: Layout, step: int, trial: Entry, attempts: Mapping[str, TrialState]) -> None:
    """One attempt was kept and is there, or all were excluded."""
    split = trial[0]
    wanted = "trained" if split == "train" else "finished"
    kept = [name for name, state in attempts.items() if state == wanted]
    there = [name for name in kept if (layout.trials(step, split) / f"{name}.parquet").exists()]
    if there or all(state == "excluded" for state in attempts.values()):
        return
    if kept:
        file = layout.trials(step, split) / f"{kept[-1]}.parquet"
        raise RunError(f"{file} is missing, though the ledger has it as {wanted}; {_RESTORE}")
    name, state = next((name, state) for name, state in attempts.items() if state != "excluded")
    raise RunError(f"{layout.ledger(step)}: {split} trial {name} is {state}, though step {step} is done; {_RESTORE}")
