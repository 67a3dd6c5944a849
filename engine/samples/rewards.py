"""Which reward an advantage is computed from: the judged one, or, for a placebo, another trajectory's.

Invariant: a rule only reorders the rewards of a batch; it makes none up. What is reported as reward stays as judged.
"""

import random
from collections.abc import Sequence


class AsJudged:
    """Each trajectory's own reward."""

    def __call__(self, rewards: Sequence[float], step: int) -> tuple[float, ...]:  # noqa: ARG002 (the contract's)
        """The rewards of a batch's kept trajectories, in order."""
        return tuple(rewards)


class ShuffledInBatch:
    """The batch's rewards dealt out anew: same rewards, same updates, nothing to learn from.

    Args:
        seed: with the step it decides who gets which reward.
    """

    def __init__(self, *, seed: int) -> None:
        self.seed = seed

    def __call__(self, rewards: Sequence[float], step: int) -> tuple[float, ...]:
        """A permutation of the rewards of a batch's kept trajectories; the same for the same seed and step."""
        dealt = list(rewards)
        random.Random(f"{self.seed}/{step}").shuffle(dealt)  # noqa: S311
        return tuple(dealt)
