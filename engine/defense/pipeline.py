"""The defences of a run, in the order in which they act.

Invariant: a defence that is `off` is not there, and none acts more strongly than `at_most`.
"""

from collections.abc import Sequence
from copy import copy
from typing import Literal

from engine.core.task_contracts import Defense


class Pipeline:
    """An ordered list of defences; the trial calls each in each phase.

    Args:
        at_most: observe: those that would enforce observe too, to measure how often each finds something.
        stages: in order.
    """

    def __init__(self, *, at_most: Literal["enforce", "observe"], stages: Sequence[Defense]) -> None:
        self.at_most = at_most
        self.stages = [_held(stage, at_most) for stage in stages if stage.mode != "off"]


def _held(stage: Defense, at_most: Literal["enforce", "observe"]) -> Defense:
    if stage.mode == "observe" or at_most == "enforce":
        return stage
    held = copy(stage)
    held.mode = at_most
    return held
