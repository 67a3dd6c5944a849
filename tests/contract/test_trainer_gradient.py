"""The trainer's gradient is that of the loss over the whole batch, however rows are cut, padded or grouped."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from trainer_cases import (
    EXPERTS,
    LAYERS,
    batch,
    gradients,
    gspo,
    largest_difference,
    row,
    started,
    write_dense,
    write_moe,
)

from engine.core.records import Batch, Row


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return write_moe(tmp_path_factory.mktemp("moe"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_dense(tmp_path_factory.mktemp("dense"))


def rows(*, routed: bool) -> list[Row]:
    return [
        row(0, 1.1, 40, routed=routed),
        row(1, -0.7, 17, routed=routed),
        row(2, 0.4, 33, routed=routed),
        row(3, -0.8, 5, routed=routed),
    ]


def split(whole: Row, at: int) -> list[Row]:
    """The same trajectory as two segments: the first ends at `at`; the second has all tokens and the later targets."""
    position = np.arange(len(whole.target))
    first = dataclasses.replace(
        whole,
        token_ids=whole.token_ids[:at],
        target=whole.target[:at],
        captured_logprobs=whole.captured_logprobs[:at],
        policy_versions=whole.policy_versions[:at],
        routed_experts=None if whole.routed_experts is None else whole.routed_experts[: at - 1],
    )
    return [first, dataclasses.replace(whole, target=whole.target & (position >= at))]


@pytest.fixture
def strong():
    """A KL that weighs as much as the policy loss, against a reference that differs after the first step."""
    return gspo(kl_coefficient=1.0, clip_low=0.2, clip_high=0.2)


def second_step(model, algorithm, of: Batch, replay: bool, **changes):
    """Gradients at a point where policy and reference differ."""
    made = started(model, replay=replay, algorithm=algorithm, learning_rate=1e-3, **changes)
    first = [row(0, 1.0, 20, routed=replay), row(1, -1.0, 21, routed=replay)]
    made.step(batch(first, step=0))
    return gradients(made, dataclasses.replace(of, step=1))


@pytest.mark.parametrize("changes", [{"micro_batch_rows": 1}, {"micro_batch_tokens": 50}, {"micro_batch_tokens": 9999}])
def test_micro_batches_change_nothing_in_float64(dense, strong, changes):
    whole, _ = second_step(dense, strong, batch(rows(routed=False)), False, dtype="float64")
    parts, _ = second_step(dense, strong, batch(rows(routed=False)), False, dtype="float64", **changes)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-3
    assert largest_difference(whole, parts) < 1e-10


def test_splitting_into_segments_changes_nothing_in_float64(dense, strong):
    whole, one = second_step(dense, strong, batch(rows(routed=False)), False, dtype="float64", micro_batch_rows=1)
    first, *others = rows(routed=False)
    cut = [*split(first, 33), *others]
    parts, two = second_step(dense, strong, batch(cut), False, dtype="float64", micro_batch_rows=1)
    assert largest_difference(whole, parts) < 1e-10
    for name in ("loss/policy", "loss/kl", "ratio/max", "ratio/min", "train/entropy", "train/tokens"):
        assert one[name] == pytest.approx(two[name], abs=1e-10)


def test_order_of_rows_changes_nothing_in_float64(dense, strong):
    whole, _ = second_step(dense, strong, batch(rows(routed=False)), False, dtype="float64")
    turned, _ = second_step(dense, strong, batch(rows(routed=False)[::-1]), False, dtype="float64")
    assert largest_difference(whole, turned) < 1e-10


def test_moe_with_replay_is_as_invariant_as_float32_allows(moe, strong):
    first, *others = rows(routed=True)
    whole, _ = second_step(moe, strong, batch([first, *others]), True)
    cut, _ = second_step(moe, strong, batch([*split(first, 33), *others]), True, micro_batch_rows=1)
    scale = max(float(g.abs().max()) for g in whole.values())
    assert largest_difference(whole, cut) < 1e-4 * scale


def test_gradient_is_that_of_one_plain_backward_pass(dense):
    """Against autograd through the loss itself, one row at a time, at a point where ratios are not 1."""
    algorithm = gspo(kl_coefficient=0.3, clip_low=0.2, clip_high=0.2)
    made = started(
        dense, replay=False, algorithm=algorithm, dtype="float64", mini_batches=2, learning_rate=1e-4, gradient_clip=1e9
    )
    of = batch(rows(routed=False))
    second, _ = gradients(made, of)  # the recorder keeps the last update's gradient: ratios differ from 1 there
    parts = made._mini_batches(of)
    # The same two updates by plain autograd.
    model = transformers.AutoModelForCausalLM.from_pretrained(dense.path, dtype=torch.float64).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)

    def logprobs(r: Row):
        logits = model(input_ids=torch.tensor(r.token_ids[None].astype(np.int64))).logits[0, :-1]
        chosen = torch.tensor(r.token_ids[1:].astype(np.int64))[:, None]
        return logits.log_softmax(-1).gather(-1, chosen).squeeze(-1)[torch.tensor(r.target[1:])]

    with torch.no_grad():
        old = {r.trajectory: logprobs(r) for r in of.rows}
    for part in parts:
        loss = torch.zeros((), dtype=torch.float64)
        for r in of.rows:
            if r.trajectory in part:
                new = logprobs(r)
                ratio = (new - old[r.trajectory]).mean().exp()
                gain = torch.minimum(ratio * r.advantage, ratio.clamp(0.8, 1.2) * r.advantage)
                difference = old[r.trajectory] - new
                loss = loss - gain / len(part) + 0.3 * (difference.exp() - 1 - difference).mean() / len(part)
        optimizer.zero_grad()
        loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    assert largest_difference(second, expected) < 1e-10


def test_tokens_outside_the_target_and_after_it_never_count(moe):
    """ROLL#444: what is masked must not reach numerator or denominator."""
    plain = row(0, 1.0, 30, routed=True, targets=range(10, 20))
    other = row(1, -1.0, 30, routed=True)
    tail = np.arange(30) >= 20
    changed = dataclasses.replace(
        plain,
        token_ids=np.where(tail, 3, plain.token_ids).astype(np.int32),
        captured_logprobs=np.where(plain.target, plain.captured_logprobs, -99.0).astype(np.float32),
    )
    one, metrics = gradients(started(moe, replay=True), batch([plain, other]))
    two, again = gradients(started(moe, replay=True), batch([changed, other]))
    assert largest_difference(one, two) == 0.0
    assert metrics["train/tokens"] == again["train/tokens"] == 20


def test_a_row_without_targets_changes_nothing(moe):
    context = row(1, -1.0, 30, routed=True)
    empty = dataclasses.replace(context, target=np.zeros(30, np.bool_))
    plain = [row(0, 1.0, 30, routed=True), context]
    one, _ = gradients(started(moe, replay=True), batch(plain))
    two, metrics = gradients(started(moe, replay=True), batch([*plain, empty]))
    assert largest_difference(one, two) == 0.0
    assert not metrics["old_logprobs"][2].any()


def test_zero_advantages_without_a_kl_give_a_zero_gradient_and_keep_the_weights(moe):
    made = started(moe, replay=True, algorithm=gspo(kl_coefficient=0.0))
    before = {name: tensor.detach().clone() for name, tensor in made._optimizer.master.items()}
    found, metrics = gradients(made, batch([row(0, 0.0, 20, routed=True), row(1, 0.0, 20, routed=True)]))
    assert all(float(g.abs().max()) == 0.0 for g in found.values())
    assert metrics["train/acting_rows"] == 0
    assert metrics["train/grad_norm"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in made._optimizer.master.items())


def test_router_gradient_is_not_zero_under_replay_of_another_routing(moe):
    found, _ = gradients(started(moe, replay=True), batch(rows(routed=True)))
    routers = [g for name, g in found.items() if name.endswith("mlp.gate.weight")]
    assert len(routers) == LAYERS
    for gradient in routers:
        assert gradient.shape[0] == EXPERTS
        assert bool((gradient.abs().amax(dim=1) > 1e-6).all())


@pytest.mark.parametrize("replay", [True, False])
def test_gradient_checkpointing_changes_nothing(moe, replay):
    of = batch(rows(routed=replay))
    one, _ = gradients(started(moe, replay=replay), of)
    two, _ = gradients(started(moe, replay=replay, gradient_checkpointing=True), of)
    scale = max(float(g.abs().max()) for g in one.values())
    assert largest_difference(one, two) < 1e-5 * scale


def test_experts_implementations_agree(moe):
    of = batch(rows(routed=True))
    one, _ = gradients(started(moe, replay=True), of)
    two, _ = gradients(started(moe, replay=True, experts_implementation="grouped_mm"), of)
    scale = max(float(g.abs().max()) for g in one.values())
    assert largest_difference(one, two) < 1e-4 * scale
