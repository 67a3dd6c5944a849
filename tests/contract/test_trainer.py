"""What every trainer does (`engine.core.contracts.Trainer`), on the real transformers models."""

import dataclasses
import hashlib
import threading

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from trainer_cases import (
    EXPERTS,
    LAYERS,
    TOP_K,
    batch,
    experts,
    gradients,
    gspo,
    row,
    started,
    trainer,
    write_dense,
    write_moe,
    write_qwen3_5,
)

from engine.core.errors import AlignmentError, ConfigError, Interrupted, NoTrainableToken, RunError
from engine.train.routing_replay import RoutingReplay


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    return write_moe(tmp_path_factory.mktemp("moe"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_dense(tmp_path_factory.mktemp("dense"))


def pair(step: int = 0, *, routed: bool = True, temperature: float = 1.0):
    rows = [row(0, 1.0, 30, routed=routed), row(1, -1.0, 24, routed=routed), row(2, 0.0, 41, routed=routed)]
    return batch(rows, step=step, temperature=temperature)


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


# ---------------------------------------------------------------- weights and checkpoints


def test_export_is_one_file_that_transformers_loads_to_the_same_model(moe, tmp_path):
    made = started(moe, replay=True)
    made.step(pair(0))
    path = tmp_path / "weights" / "v1.safetensors"
    made.export(path)
    assert [p.name for p in path.parent.iterdir()] == ["v1.safetensors"]
    names = set(load_file(path))
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in names
    assert "model.layers.1.mlp.gate.weight" in names
    assert names == set(load_file(moe.path / "model.safetensors"))
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "config.json").write_text((moe.path / "config.json").read_text())
    path.rename(folder / "model.safetensors")
    ids = pair().rows[0].token_ids
    again = started(dataclasses.replace(moe, path=folder), replay=True)
    assert np.array_equal(again.score(ids), made.score(ids))


def test_two_steps_are_one_step_a_checkpoint_and_one_step(moe, tmp_path):
    changes = {"mini_batches": 2, "warmup_steps": 3, "weight_decay": 0.1}
    straight = started(moe, replay=True, **changes)
    straight.step(pair(0))
    expected = straight.step(pair(1))
    first = started(moe, replay=True, **changes)
    first.step(pair(0))
    first.save(tmp_path / "c" / "step=0")
    second = started(moe, replay=True, **changes)
    second.load(tmp_path / "c" / "step=0")
    found = second.step(pair(1))
    for name in expected:
        if name != "old_logprobs" and not name.startswith("time/"):
            assert found[name] == expected[name], name
    for name, tensor in straight._optimizer.master.items():
        assert torch.equal(tensor, second._optimizer.master[name]), name
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step=0"]


def test_saving_again_replaces_the_folder(moe, tmp_path):
    made = started(moe, replay=True)
    made.save(tmp_path / "c")
    made.step(pair(0))
    made.save(tmp_path / "c")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    resumed = started(moe, replay=True)
    resumed.load(tmp_path / "c")
    with pytest.raises(RunError, match="step 0 is trained already"):
        resumed.step(pair(0))


def test_a_checkpoint_of_another_start_is_refused(moe, tmp_path):
    made = started(moe, replay=True)
    made.step(pair(0))
    made.save(tmp_path / "c")
    made.export(tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text((moe.path / "config.json").read_text())
    other = started(dataclasses.replace(moe, path=tmp_path / "other"), replay=True)
    before = other.score(pair().rows[0].token_ids)
    with pytest.raises(RunError, match="reference_sha256"):
        other.load(tmp_path / "c")
    assert np.array_equal(before, other.score(pair().rows[0].token_ids))


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "trainer.json"])
def test_a_broken_checkpoint_is_refused_and_changes_nothing(moe, tmp_path, name):
    made = started(moe, replay=True)
    made.step(pair(0))
    made.save(tmp_path / "c")
    file = tmp_path / "c" / name
    file.write_bytes(file.read_bytes()[:20])
    fresh = started(moe, replay=True)
    before = fresh.score(pair().rows[0].token_ids)
    with pytest.raises(RunError, match="cannot be read"):
        fresh.load(tmp_path / "c")
    assert np.array_equal(before, fresh.score(pair().rows[0].token_ids))


def test_the_reference_is_named_by_its_hash(moe):
    made = started(moe, replay=True)
    again = hashlib.sha256()
    for name in sorted(made._reference.parameters):
        tensor = made._reference.parameters[name]
        again.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        again.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    assert made.reference_sha256 == again.hexdigest()
    made.step(pair(0))
    assert made.reference_sha256 == started(moe, replay=False).reference_sha256


@pytest.mark.parametrize("rows_before", [1, 2, 4, 5])
def test_a_stop_ends_a_step_in_another_thread_at_its_next_micro_batch(moe, rows_before):
    made = started(moe, replay=True, micro_batch_rows=1)
    policy, weights = made._policy, {name: p.detach().clone() for name, p in made._policy.parameters.items()}
    began, go_on, raised, computed = threading.Event(), threading.Event(), [], []

    def logprobs(*given, **how):
        computed.append(1)
        if len(computed) == rows_before:
            began.set()
            assert go_on.wait(60)
        return whole(*given, **how)

    def step():
        try:
            made.step(pair())
        except BaseException as error:
            raised.append(type(error))

    whole, policy.logprobs = policy.logprobs, logprobs
    thread = threading.Thread(target=step)
    thread.start()
    assert began.wait(60)
    made.stop()  # returns at once
    go_on.set()
    thread.join(60)
    assert (raised, len(computed)) == ([Interrupted], rows_before)
    for name, parameter in policy.parameters.items():
        assert torch.equal(parameter, weights[name])


def test_runs_in_a_worker_thread_and_stops_twice(moe):
    made = trainer()
    results: list[float] = []

    def work() -> None:
        made.start(moe, gspo(), RoutingReplay(enabled=True), 0)
        results.append(made.step(pair(0))["train/grad_norm"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0] > 0
    made.stop()
    made.stop()
    with pytest.raises(RunError, match="not started"):
        made.score(pair().rows[0].token_ids)


# ---------------------------------------------------------------- refusals


def first_row(**changes):
    of = pair()
    return dataclasses.replace(of, rows=(dataclasses.replace(of.rows[0], **changes), *of.rows[1:]))


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (first_row(routed_experts=experts(RNG, 31)), rf"\(30, {LAYERS}, {TOP_K}\).* 30 tokens need \(29, {LAYERS}"),
        (first_row(routed_experts=experts(RNG, 29)), r"\(28, .*\(29, "),
        (first_row(routed_experts=experts(RNG, 30)[:, :1]), rf"\(29, 1, {TOP_K}\).*\(29, {LAYERS}, {TOP_K}\)"),
        (first_row(routed_experts=experts(RNG, 30)[:, :, :1]), rf"\(29, {LAYERS}, 1\).*\(29, {LAYERS}, {TOP_K}\)"),
        (first_row(routed_experts=experts(RNG, 30) + 3), rf"expert ids 3 to 6; the model has {EXPERTS} experts"),
        (first_row(routed_experts=experts(RNG, 30) * 0), r"experts \[0, 0\] at position 0, layer 0 repeat; 58 rows"),
        (first_row(routed_experts=None), "no routed experts"),
        (first_row(target=np.ones(30, np.bool_)), "position 0 is a target"),
        (first_row(target=np.ones(29, np.bool_)), "29 target flags for 30 tokens"),
        (first_row(token_ids=np.full(30, 96, np.int32)), "token ids 96 to 96; the model has 96"),
        (first_row(trajectory=3), "trajectory 3 of 3"),
        (first_row(trajectory=1), "advantage -1.0, but trajectory 1 has 1.0"),
        (first_row(advantage=float("nan")), "advantage nan is not finite"),
        (dataclasses.replace(pair(), temperature=0.0), "temperature 0.0"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_its_numbers(moe, of, words):
    made = started(moe, replay=True)
    with pytest.raises(AlignmentError, match=words):
        made.step(of)
    made.step(pair())  # nothing was changed, and the step can still be trained


def test_a_batch_without_targets_is_refused(moe):
    of = pair()
    empty = tuple(dataclasses.replace(r, target=np.zeros_like(r.target)) for r in of.rows)
    with pytest.raises(NoTrainableToken, match="none of 3 rows"):
        started(moe, replay=True).step(dataclasses.replace(of, rows=empty))


def test_routing_for_a_dense_model_is_refused_and_its_absence_is_not(dense):
    made = started(dense, replay=True, dtype="float64")
    made.step(pair(0, routed=False))
    with pytest.raises(AlignmentError, match="for a dense model"):
        made.step(pair(1, routed=True))


def test_a_model_with_fewer_routed_layers_than_told_is_refused(moe):
    with pytest.raises(RunError, match=f"found {LAYERS} routers .* {LAYERS + 1} routed layers"):
        started(dataclasses.replace(moe, num_layers=LAYERS + 1), replay=True)


def test_a_step_is_not_trained_twice(moe):
    made = started(moe, replay=True)
    made.step(pair(3))
    with pytest.raises(RunError, match="step 3 was asked for, but step 3 is trained already"):
        made.step(pair(3))


def test_an_absent_device_is_a_configuration_error(moe):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=r"train\.device='cuda'"):
        started(moe, replay=True, device="cuda")


class Broken:
    """An algorithm whose loss goes wrong."""

    needs_reference = False

    def __init__(self, factor: float, *, only_gradient: bool) -> None:
        self.factor = factor
        self.only_gradient = only_gradient
        self.advantage = None

    def loss(self, streams):
        loss = streams.new.sum() * self.factor
        return (loss - loss.detach() + 1.0 if self.only_gradient else loss), {}


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Broken(float("nan"), only_gradient=False), "step 4: the loss is nan"),
        (Broken(1e300, only_gradient=True), "step 4: gradient norm is (inf|nan)"),
    ],
)
def test_what_is_not_finite_stops_the_run_and_leaves_the_weights(moe, algorithm, words):
    made = started(moe, replay=True, algorithm=algorithm)
    before = {name: tensor.detach().clone() for name, tensor in made._optimizer.master.items()}
    with pytest.raises(RunError, match=words):
        made.step(pair(4))
    assert all(torch.equal(before[name], tensor) for name, tensor in made._optimizer.master.items())
    assert made._optimizer.updates == 0


def test_log_probabilities_that_are_not_finite_stop_the_run(moe):
    made = started(moe, replay=True)
    with torch.no_grad():
        made._policy.parameters["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(RunError, match="step 0: log-probabilities of row 0 are not finite"):
        made.step(pair(0))
