"""What a loss sees: the sampled tokens of one optimiser update as flat streams.

Invariant: every element is a sampled token of a kept trajectory; there is no padding and no mask, so nothing masked can
leak into a sum. The order of tokens means nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Streams:
    """Log-probabilities are natural, at the rollout's temperature, float64 [tokens] unless said otherwise."""

    new: "torch.Tensor"
    """By the weights under optimisation; the only stream with a gradient."""
    old: "torch.Tensor"
    """By the weights at the start of the step; never the same tensor as `new`."""
    reference: "torch.Tensor | None"
    """By the frozen start of the run; None when the algorithm does not need it."""
    trajectory: "torch.Tensor"
    """int64 [tokens]; index of the token's trajectory, 0 … trajectories - 1."""
    advantage: "torch.Tensor"
    """float64 [trajectories]."""
    trajectories: int
    """Kept trajectories of this update: the outer denominator, those without a sampled token included."""
