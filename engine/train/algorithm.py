"""Algorithms: what the optimiser minimises, as components.

Invariant: an algorithm is pure: it holds its settings and the advantage rule, no state of the run.
Refuses: nothing itself; the schema has refused values that are out of range.
"""

from collections.abc import Mapping
from typing import Any

from engine.core.training_contracts import Advantage, Rewards
from engine.train.streams import Streams


class Gspo:
    """GSPO with clipped sequence ratios and a KL loss to the frozen start; see `engine.train.losses.gspo`.

    Args:
        clip_low: the ratio's lower bound is 1 - clip_low.
        clip_high: the ratio's upper bound is 1 + clip_high.
        kl_coefficient: weight of the KL loss; 0 leaves the reference out altogether.
        kl_estimator: `low_variance` (k3).
        kl_in_reward: whether the KL lowers the reward instead; False is what exists.
        aggregation: `seq-mean-token-mean`: mean over a trajectory's tokens, then over trajectories.
        importance_correction: correction for engine-trainer mismatch; `off` is what exists.
        rewards: which reward a trajectory's advantage is computed from.
        advantage: rewards of a group → advantages.
    """

    def __init__(
        self,
        *,
        clip_low: float,
        clip_high: float,
        kl_coefficient: float,
        kl_estimator: str,
        kl_in_reward: bool,
        aggregation: str,
        importance_correction: str,
        rewards: Rewards,
        advantage: Advantage,
    ) -> None:
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.kl_coefficient = kl_coefficient
        self.kl_estimator = kl_estimator
        self.kl_in_reward = kl_in_reward
        self.aggregation = aggregation
        self.importance_correction = importance_correction
        self.rewards = rewards
        self.advantage = advantage

    @property
    def needs_reference(self) -> bool:
        return self.kl_coefficient > 0.0

    def loss(self, streams: Streams) -> tuple[Any, Mapping[str, float]]:
        """Scalar loss (float64 tensor) and metrics of one optimiser update."""
        from engine.train.losses import GspoSettings, gspo

        settings = GspoSettings(clip_low=self.clip_low, clip_high=self.clip_high, kl_coefficient=self.kl_coefficient)
        return gspo(streams, settings)
