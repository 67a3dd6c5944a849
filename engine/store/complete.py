"""Whether the store holds all that its checkpoints and its ledger say was done.

Refuses, naming the file and the way out, a run in which somebody deleted or added something: its figures would be those
of another run.
"""

from engine.core.errors import RunError
from engine.store.layout import Layout
from engine.store.ledger import read_ledger

_RESTORE = "restore it from a copy, or set the run aside with run.fresh=true"


def check_complete(layout: Layout, steps: int) -> None:
    """Look at the first `steps` steps, and at validations before and between them. Raises RunError."""
    for step in range(steps):
        if not layout.step(step).exists():
            raise RunError(
                f"{layout.step(step)} is missing, though checkpoint {step + 1} says that it is done; {_RESTORE}"
            )
        for (split, trial), state in read_ledger(layout, step).items():
            kept = "trained" if split == "train" else "finished"
            file = layout.trials(step, split) / f"{trial}.parquet"
            if state not in (kept, "excluded"):
                problem = f"{layout.ledger(step)}: {split} trial {trial} is {state}, though step {step} is done"
                raise RunError(f"{problem}; {_RESTORE}")
            if state == kept and not file.exists():
                raise RunError(f"{file} is missing, though the ledger has it as {state}; {_RESTORE}")
