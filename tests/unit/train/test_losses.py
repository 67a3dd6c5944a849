"""GSPO against reference figures, and its invariances."""

import json
from pathlib import Path

import pytest
import torch

from engine.samples.advantages import GroupNormalized
from engine.samples.rewards import AsJudged
from engine.train.algorithm import Gspo
from engine.train.losses import low_variance_kl
from engine.train.streams import Streams

REFERENCE = json.loads((Path(__file__).parents[2] / "fixtures" / "gspo_reference.json").read_text())


def gspo(kl_coefficient: float = 0.0, low: float = 3e-4, high: float = 4e-4) -> Gspo:
    return Gspo(
        clip_low=low,
        clip_high=high,
        kl_coefficient=kl_coefficient,
        kl_estimator="low_variance",
        kl_in_reward=False,
        aggregation="seq-mean-token-mean",
        importance_correction="off",
        rewards=AsJudged(),
        advantage=GroupNormalized(ddof=1, epsilon=1e-6),
    )


def streams(new, old, mask, advantages, reference=None, order=None) -> Streams:
    """From padded [B, T] tensors to flat streams; `order` permutes the tokens."""
    flat = mask.bool().reshape(-1).nonzero().squeeze(-1)
    flat = flat if order is None else flat[order]
    index = torch.arange(len(advantages)).repeat_interleave(mask.shape[1])
    return Streams(
        new=new.reshape(-1)[flat],
        old=old.reshape(-1)[flat],
        reference=None if reference is None else reference.reshape(-1)[flat],
        trajectory=index[flat],
        advantage=advantages,
        trajectories=len(advantages),
    )


def case(name: str):
    data = REFERENCE["cases"][name]
    keys = ("new_logprobs", "old_logprobs", "loss_mask", "advantages")
    return data, *(torch.tensor(data[key], dtype=torch.float64) for key in keys)


@pytest.mark.parametrize("name", ["ragged", "tiny"])
def test_loss_and_gradient_match_the_reference(name):
    data, new, old, mask, advantages = case(name)
    new.requires_grad_()
    algorithm = gspo(low=REFERENCE["clip_low"], high=REFERENCE["clip_high"])
    loss, metrics = algorithm.loss(streams(new, old, mask, advantages))
    loss.backward()
    assert loss.item() == pytest.approx(data["loss"], abs=1e-12)
    assert torch.allclose(new.grad, torch.tensor(data["gradient"], dtype=torch.float64), atol=1e-12)
    assert metrics["ratio/max"] == pytest.approx(max(data["ratio"]), abs=1e-12)
    assert metrics["ratio/min"] == pytest.approx(min(data["ratio"]), abs=1e-12)
    # In both cases one trajectory is clipped above with A > 0 and one below with A < 0.
    assert metrics["clip_fraction/low"] == metrics["clip_fraction/high"] == pytest.approx(1 / len(advantages))


@pytest.mark.parametrize("name", ["ragged", "tiny"])
def test_a_trajectory_without_tokens_adds_nothing_and_stays_in_the_denominator(name):
    data, new, old, mask, advantages = case(name)
    mask[data["without_row"]["row"]] = 0
    loss, _ = gspo().loss(streams(new, old, mask, advantages))
    assert loss.item() == pytest.approx(data["without_row"]["loss"], abs=1e-12)


def test_masked_tokens_never_leak():
    _, new, old, mask, advantages = case("ragged")
    reference = old - 0.1
    expected, _ = gspo(0.5).loss(streams(new, old, mask, advantages, reference))
    poison = torch.where(mask.bool(), torch.zeros_like(mask), torch.full_like(mask, 1e6))
    found, _ = gspo(0.5).loss(streams(new + poison, old - poison, mask, advantages, reference + poison))
    assert found.item() == expected.item()


def test_order_of_tokens_means_nothing():
    _, new, old, mask, advantages = case("ragged")
    order = torch.randperm(int(mask.sum()), generator=torch.Generator().manual_seed(0))
    plain, _ = gspo(0.5).loss(streams(new, old, mask, advantages, old + 0.2))
    mixed, _ = gspo(0.5).loss(streams(new, old, mask, advantages, old + 0.2, order))
    assert mixed.item() == pytest.approx(plain.item(), abs=1e-14)


def test_equal_log_probabilities_give_the_plain_policy_gradient():
    lengths, advantages = [3, 1], torch.tensor([1.0, -2.0], dtype=torch.float64)
    old = torch.tensor([-1.0, -2.0, -3.0, -0.5], dtype=torch.float64)
    new = old.clone().requires_grad_()
    trajectory = torch.tensor([0, 0, 0, 1])
    loss, _ = gspo().loss(
        Streams(new=new, old=old, reference=None, trajectory=trajectory, advantage=advantages, trajectories=2)
    )
    loss.backward()
    expected = [-advantages[t].item() / lengths[t] / 2 for t in (0, 0, 0, 1)]
    assert new.grad.tolist() == pytest.approx(expected, abs=1e-15)


def test_kl_is_a_mean_over_tokens_then_over_trajectories():
    new = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -1.0, -0.7], dtype=torch.float64)
    k3 = [float(torch.exp(r - n) - 1 - (r - n)) for n, r in zip(new.detach(), reference, strict=True)]
    loss, metrics = gspo(1.0).loss(
        Streams(
            new=new,
            old=new.detach().clone(),
            reference=reference,
            trajectory=torch.tensor([0, 0, 1]),
            advantage=torch.zeros(2, dtype=torch.float64),
            trajectories=2,
        )
    )
    expected = ((k3[0] + k3[1]) / 2 + k3[2]) / 2
    assert metrics["loss/kl"] == pytest.approx(expected, abs=1e-14)
    assert loss.item() == pytest.approx(expected, abs=1e-14)
    loss.backward()
    assert new.grad.tolist() == pytest.approx(
        [float(1 - torch.exp(reference[i] - new[i].detach())) * w for i, w in ((0, 0.25), (1, 0.25), (2, 0.5))]
    )


def test_kl_is_never_negative_and_zero_for_equal_policies():
    new = torch.linspace(-8, -0.01, 50, dtype=torch.float64)
    assert bool((low_variance_kl(new, new.flip(0)) >= 0).all())
    assert float(low_variance_kl(new, new.clone()).abs().max()) == 0.0


def test_needs_the_reference_only_with_a_kl():
    assert gspo(1e-3).needs_reference
    assert not gspo(0.0).needs_reference
