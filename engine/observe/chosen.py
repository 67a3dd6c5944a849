"""Which stored trials of a run a job is about: those of a split, of a step, or all that are finished.

Reads a live run like a finished one. Refuses (ConfigError) a choice that holds no trial, saying what there is.
"""

from dataclasses import dataclass

from engine.core.errors import ConfigError
from engine.core.records import Split
from engine.store.reader import Reader

SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Named:
    """Where a stored trial lies."""

    split: Split
    step: int
    name: str


def chosen(reader: Reader, split: Split | None, step: int | None) -> list[Named]:
    """The finished trials of a run. Raises ConfigError when there is none."""
    found = [
        Named(split=one, step=number, name=name)
        for one in SPLITS
        for number in reader.rollouts(one)
        if split in (None, one) and step in (None, number)
        for name in reader.trials(number, one)
    ]
    if not found:
        raise _none(reader, split, step)
    return found


def _none(reader: Reader, split: Split | None, step: int | None) -> ConfigError:
    root = reader.layout.root
    there = {one: [number for number in reader.rollouts(one) if reader.trials(number, one)] for one in SPLITS}
    if not any(there.values()):
        return ConfigError("job.run", str(root), "no trial of this run is finished", "ask again once one is")
    if split is not None and not there[split]:
        return ConfigError("job.split", split, f"{root} has no finished trial of it", "leave it null for all there are")
    steps = sorted({number for one in SPLITS if split in (None, one) for number in there[one]})
    return ConfigError(
        "job.step", step, f"{root} has no finished trial of it", f"name one from {steps[0]} to {steps[-1]}"
    )
