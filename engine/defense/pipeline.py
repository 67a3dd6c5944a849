"""The defences of a run, in the order in which they act."""

from collections.abc import Sequence

from engine.core.contracts import Defense


class Pipeline:
    """An ordered list of defences; the trial calls each in each phase."""

    def __init__(self, *, stages: Sequence[Defense]) -> None:
        self.stages = stages
