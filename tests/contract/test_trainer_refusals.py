"""What no trainer trains on: rows that do not fit, routing of other models, losses that are not finite."""

import dataclasses

import numpy as np
import pytest
import torch
from trainer_cases import (
    EXPERTS,
    LAYERS,
    TOP_K,
    experts,
    pair,
    started,
)

from engine.core.errors import AlignmentError, ConfigError, NoTrainableToken, RunError


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
