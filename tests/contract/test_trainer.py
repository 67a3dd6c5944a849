"""What every trainer computes (`engine.core.training_contracts.Trainer`), on the real transformers models."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from trainer_cases import (
    batch,
    gradients,
    gspo,
    pair,
    row,
    started,
    write_moe,
    write_qwen3_5,
)


def captured(model, of):
    """The model's own routing and log-probabilities of each row, one row at a time, by transformers alone."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    routings: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda m, i, o: routings.append(o[2]))
        for module in plain.modules()
        if type(module).__name__ in {"Qwen3MoeTopKRouter", "Qwen3_5MoeTopKRouter"}
    ]
    result = []
    for r in of.rows:
        routings.clear()
        ids = torch.tensor(r.token_ids[None].astype(np.int64))
        with torch.no_grad():
            logits = plain(input_ids=ids).logits[0, :-1] / of.temperature
        logprobs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1).numpy()
        routed = torch.stack(routings, dim=1)[:-1].numpy().astype(np.uint8)
        result.append((routed, np.concatenate([[0.0], logprobs]).astype(np.float32)))
    for hook in hooks:
        hook.remove()
    return result


# ---------------------------------------------------------------- log-probabilities


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_old_log_probabilities_are_those_of_a_single_row(moe, temperature):
    of = pair(routed=False, temperature=temperature)
    metrics = started(moe, replay=False).step(of)
    for r, old, (_, single) in zip(of.rows, metrics["old_logprobs"], captured(moe, of), strict=True):
        assert old.dtype == np.float32
        assert old.shape == r.target.shape
        assert np.abs(old - single)[r.target].max() < 1e-5
        assert not old[~r.target].any()


def test_replaying_the_model_s_own_routing_is_the_free_forward_pass(moe):
    of = pair()
    own = captured(moe, of)
    rows = [dataclasses.replace(r, routed_experts=routed) for r, (routed, _) in zip(of.rows, own, strict=True)]
    metrics = started(moe, replay=True).step(dataclasses.replace(of, rows=tuple(rows)))
    for r, old, (_, free) in zip(rows, metrics["old_logprobs"], own, strict=True):
        assert np.abs(old - free)[r.target].max() < 1e-5


def test_the_architecture_of_scale_paper_replays_trains_and_exports(tmp_path):
    """Linear attention keeps a state over positions: padding on the right must not reach it either."""
    model = write_qwen3_5(tmp_path / "m")
    of = pair()
    own = captured(model, of)
    rows = [dataclasses.replace(r, routed_experts=routed) for r, (routed, _) in zip(of.rows, own, strict=True)]
    made = started(model, replay=True)
    found, metrics = gradients(made, dataclasses.replace(of, rows=tuple(rows)))
    for r, old, (_, free) in zip(rows, metrics["old_logprobs"], own, strict=True):
        assert np.abs(old - free)[r.target].max() < 1e-5
    assert all(float(g.abs().max()) > 0 for name, g in found.items() if name.endswith("mlp.gate.weight"))
    made.export(tmp_path / "w.safetensors")
    assert set(load_file(tmp_path / "w.safetensors")) == set(load_file(model.path / "model.safetensors"))


def test_replaying_another_routing_gives_other_log_probabilities(moe):
    of = pair()
    metrics = started(moe, replay=True).step(of)
    gaps = [
        np.abs(old - free)[r.target].max()
        for r, old, (_, free) in zip(of.rows, metrics["old_logprobs"], captured(moe, of), strict=True)
    ]
    assert min(gaps) > 1e-2


def test_score_is_the_free_forward_pass(moe):
    ids = row(0, 0.0, 50, routed=False)
    scores = started(moe, replay=True).score(ids.token_ids)
    [(_, single)] = captured(moe, batch([ids]))
    assert scores.shape == (49,)
    assert scores.dtype == np.float32
    assert np.abs(scores - single[1:]).max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entropy_is_the_mean_over_targets(dense, temperature):
    of = dataclasses.replace(pair(routed=False), temperature=temperature)
    metrics = started(dense, replay=False, dtype="float64").step(of)
    plain = transformers.AutoModelForCausalLM.from_pretrained(dense.path, dtype=torch.float64).eval()
    values = []
    for r in of.rows:
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor(r.token_ids[None].astype(np.int64))).logits[0, :-1]
        values.append(
            torch.distributions.Categorical(logits=logits / temperature).entropy()[torch.tensor(r.target[1:])]
        )
    assert metrics["train/entropy"] == pytest.approx(float(torch.cat(values).mean()), abs=1e-9)


def test_entropy_is_that_of_the_replayed_experts(moe):
    replayed, free = (started(moe, replay=replay).step(pair())["train/entropy"] for replay in (True, False))
    assert abs(replayed - free) > 1e-6


def test_it_tells_how_far_a_step_is(moe, monkeypatch):
    made = started(moe, replay=True, micro_batch_rows=1)
    told = []
    monkeypatch.setattr(
        type(made), "doing", property(lambda self: "", lambda self, text: told.append(text)), raising=False
    )
    made.step(pair(0))
    made.step(pair(1))
    rows = len(pair().rows)
    assert f"log-probabilities, row {rows} of {rows}" in told
    assert f"reference log-probabilities, row {rows} of {rows}" in told
    assert any(text.startswith("update 2, row 1 of ") for text in told)


# ---------------------------------------------------------------- learning


def test_rewarded_tokens_become_likelier_and_punished_ones_less_likely(moe):
    made = started(moe, replay=True)
    before = made.step(pair(0))["old_logprobs"]
    for step in range(1, 5):
        made.step(pair(step))
    after = made.step(pair(5))["old_logprobs"]
    change = [float((b - a).sum()) for a, b in zip(before, after, strict=True)]
    assert change[0] > 0.5
    assert change[1] < -0.5


def test_new_and_old_part_within_a_step_so_that_clipping_can_act(moe):
    """SkyRL#1315: with the same tensor on both sides every ratio is 1 for ever."""
    rows = [row(i, 1.0 if i % 2 else -1.0, 20 + i, routed=True) for i in range(4)]
    twin = [dataclasses.replace(r, trajectory=r.trajectory + 4) for r in rows]
    # The second half of the updates meets tokens that the first half has already moved.
    metrics = started(moe, replay=True, mini_batches=4, learning_rate=3e-3).step(batch([*rows, *twin]))
    assert metrics["ratio/max"] > 1.0 + 4e-4
    assert metrics["ratio/min"] < 1.0 - 3e-4
    assert metrics["clip_fraction/high"] + metrics["clip_fraction/low"] > 0
    assert metrics["train/updates"] == 4
    one = started(moe, replay=True).step(batch([*rows, *twin]))
    assert one["ratio/max"] == one["ratio/min"] == 1.0


def test_mini_batches_share_out_whole_trajectories(moe):
    made = started(moe, replay=True, mini_batches=3)
    of = batch([row(i // 2, 0.5, 20 + i, routed=True) for i in range(14)])
    parts = made._mini_batches(of)
    assert sorted(t for part in parts for t in part) == list(range(7))
    assert [len(part) for part in parts] == [3, 2, 2]
    assert parts == started(moe, replay=True, mini_batches=3)._mini_batches(of)


def test_kl_is_zero_at_the_start_and_positive_after_an_update(moe):
    made = started(moe, replay=True)
    assert made.step(pair(0))["loss/kl"] == 0.0
    assert made.step(pair(1))["loss/kl"] > 0.0


def test_the_reference_stays_the_start_of_the_run(moe):
    made = started(moe, replay=True)
    start = {name: tensor.clone() for name, tensor in made._reference.parameters.items()}
    made.step(pair(0))
    made.step(pair(1))
    assert all(torch.equal(start[name], tensor) for name, tensor in made._reference.parameters.items())


def test_without_a_kl_no_reference_is_kept(moe):
    assert started(moe, replay=True, algorithm=gspo(kl_coefficient=0.0))._reference is None


def test_dropout_of_the_model_does_not_act(moe):
    """The checkpoint has attention_dropout 0.1."""
    made = started(moe, replay=True)
    assert np.array_equal(made.score(pair().rows[0].token_ids), made.score(pair().rows[0].token_ids))
    assert made.step(pair(0))["train/recompute_gap/max"] < 1e-6


# ---------------------------------------------------------------- learning rate


@pytest.mark.parametrize(("warmup", "rates"), [(0, [1e-3, 1e-3, 1e-3]), (2, [5e-4, 1e-3, 1e-3])])
def test_learning_rate_is_full_from_the_first_update_or_warms_up_above_zero(moe, warmup, rates):
    made = started(moe, replay=True, warmup_steps=warmup)
    assert [made.step(pair(step))["train/lr"] for step in range(3)] == pytest.approx(rates)


def test_resuming_uses_the_configured_learning_rate_not_the_saved_one(moe, tmp_path):
    made = started(moe, replay=True)
    made.step(pair(0))
    made.save(tmp_path / "c")
    resumed = started(moe, replay=True, learning_rate=7e-4)
    resumed.load(tmp_path / "c")
    assert resumed.step(pair(1))["train/lr"] == pytest.approx(7e-4)


def test_bfloat16_moves_at_a_learning_rate_below_its_resolution(tmp_path):
    model = write_moe(tmp_path / "m", dtype="bfloat16")
    made = started(model, replay=True, dtype="bfloat16", learning_rate=1e-6)
    before = {name: tensor.clone() for name, tensor in made._optimizer.master.items()}
    for step in range(3):
        made.step(pair(step))
    moved = [(before[name] != tensor).float().mean().item() for name, tensor in made._optimizer.master.items()]
    assert min(moved) > 0.5
    assert {tensor.dtype for tensor in made._optimizer.master.values()} == {torch.float32}
    for name, parameter in made._policy.parameters.items():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, made._optimizer.master[name].to(torch.bfloat16))
