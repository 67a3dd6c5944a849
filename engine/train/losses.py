"""Policy losses: one record of streams in, `(loss, metrics)` out. Torch; loaded only when something is trained.

Invariant: each loss is a function of the set of (token, trajectory) pairs. Micro-batches, segments, padding and the
order of rows cannot change it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.train.streams import Streams


@dataclass(frozen=True, kw_only=True)
class GspoSettings:
    """See `engine.train.algorithm.Gspo`."""

    clip_low: float
    clip_high: float
    kl_coefficient: float


def gspo(streams: Streams, settings: GspoSettings) -> tuple[Tensor, dict[str, float]]:
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071), where a sequence is a trajectory.

    s = exp(mean over the trajectory's tokens of (new - old)); the loss is the mean over trajectories of
    -min(s A, clip(s, 1 - low, 1 + high) A), plus the KL coefficient times the mean over trajectories of the mean over
    their tokens of k3. A trajectory without tokens adds 0 and stays in the denominator.

    Returns a float64 scalar with gradient in `streams.new`, and metrics.
    """
    tokens = _count(streams)
    present = tokens > 0
    # A trajectory without tokens has log-ratio 0 / 1 here; `present` takes it out below.
    log_ratio = _sum_by_trajectory(streams.new - streams.old, streams) / tokens.clamp(min=1)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    gain = torch.minimum(ratio * streams.advantage, clipped * streams.advantage)
    policy = -(gain * present).sum() / streams.trajectories
    kl = policy.new_zeros(())
    if streams.reference is not None:
        per_token = low_variance_kl(streams.new, streams.reference)
        kl = (_sum_by_trajectory(per_token, streams) / tokens.clamp(min=1)).sum() / streams.trajectories
    loss = policy + settings.kl_coefficient * kl
    with torch.no_grad():
        held = ratio[present]
        advantage = streams.advantage[present]
        metrics = {
            "loss/total": float(loss),
            "loss/policy": float(policy),
            "loss/kl": float(kl),
            "ratio/mean": float(held.mean()),
            "ratio/min": float(held.min()),
            "ratio/max": float(held.max()),
            # Only where the bound takes the gradient away, as `min` picks the clipped side.
            "clip_fraction/low": _fraction((held < 1.0 - settings.clip_low) & (advantage < 0)),
            "clip_fraction/high": _fraction((held > 1.0 + settings.clip_high) & (advantage > 0)),
        }
    return loss, metrics


def low_variance_kl(new: Tensor, reference: Tensor) -> Tensor:
    """k3 estimate of KL(new ‖ reference) per token [tokens]: never negative (Schulman 2020, joschu.net/blog/kl-approx).

    With d = reference - new it is exp(d) - 1 - d.
    """
    difference = reference - new
    return torch.expm1(difference) - difference


def _sum_by_trajectory(values: Tensor, streams: Streams) -> Tensor:
    """[tokens] → [trajectories]."""
    return values.new_zeros(streams.trajectories).index_add(0, streams.trajectory, values)


def _count(streams: Streams) -> Tensor:
    """Sampled tokens of each trajectory, float64 [trajectories]."""
    return torch.bincount(streams.trajectory, minlength=streams.trajectories).to(streams.new.dtype)


def _fraction(condition: Tensor) -> float:
    return float(condition.to(torch.float64).mean())
