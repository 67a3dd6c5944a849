"""Rewards of one group → one advantage per kept trajectory.

Invariant: an advantage depends on the rewards of its own group alone; a group that tells nothing apart (one member,
or no variance) gives exactly 0.
Refuses: rewards that are not finite.
"""

import math
from collections.abc import Sequence

import numpy as np

from engine.core.errors import RunError


class GroupNormalized:
    """(reward - mean) / (standard deviation + epsilon), as in GRPO (Shao et al. 2024, arXiv:2402.03300).

    Args:
        ddof: delta degrees of freedom of the standard deviation (1: sample, 0: population).
        epsilon: added to the standard deviation.
    """

    def __init__(self, *, ddof: int, epsilon: float) -> None:
        self.ddof = ddof
        self.epsilon = epsilon

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One advantage per reward, in order. Raises RunError on a reward that is not finite."""
        for reward in rewards:
            if not math.isfinite(reward):
                raise RunError(f"reward {reward!r} is not finite; a grader must return a number or fail")
        # Equal rewards are compared as such: their computed mean may differ from them in the last bit.
        if len(rewards) <= self.ddof or min(rewards) == max(rewards):
            return (0.0,) * len(rewards)
        values = np.asarray(rewards, dtype=np.float64)
        normalized = (values - values.mean()) / (values.std(ddof=self.ddof) + self.epsilon)
        return tuple(float(value) for value in normalized)
