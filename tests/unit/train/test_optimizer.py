import math

import pytest
import torch

from engine.core.errors import RunError
from engine.train.optimizer import Optimizer, OptimizerSettings, learning_rate


def settings(**changes) -> OptimizerSettings:
    values = {
        "learning_rate": 0.1,
        "betas": (0.9, 0.99),
        "weight_decay": 0.0,
        "epsilon": 1e-8,
        "gradient_clip": 1.0,
        "warmup_steps": 0,
    }
    return OptimizerSettings(**(values | changes))


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [(0, [1, 1, 1]), (1, [1, 1, 1]), (2, [0.5, 1, 1]), (4, [0.25, 0.5, 0.75, 1, 1])],
)
def test_the_rate_is_never_zero_and_reaches_its_full_value(warmup, rates):
    found = [learning_rate(settings(learning_rate=1.0, warmup_steps=warmup), n) for n in range(len(rates))]
    assert found == rates


def leaf(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def test_the_norm_is_reported_before_and_applied_after_clipping():
    one, two = leaf([0.0, 0.0]), leaf([[0.0]])
    optimizer = Optimizer({"one": one, "two": two}, settings(gradient_clip=0.5))
    optimizer.zero()
    (one * torch.tensor([3.0, 0.0]) + two * 4.0).sum().backward()
    norm = optimizer.step("step 0")["train/grad_norm"]
    assert norm == pytest.approx(math.sqrt(9 + 64))
    # The first moment is (1 - beta1) times the clipped gradient.
    assert optimizer.state()["moments"]["two"]["exp_avg"].item() == pytest.approx(0.1 * 8 * 0.5 / norm, rel=1e-4)


def moved(weight: torch.Tensor, optimizer: Optimizer) -> float:
    """How far one update moves a weight whose gradient is always 1: Adam then moves it by the rate."""
    before = weight.item()
    optimizer.zero()
    weight.sum().backward()
    optimizer.step("step 0")
    return before - weight.item()


def test_the_weights_move_by_the_rate_that_is_reported():
    weight = leaf([1.0])
    optimizer = Optimizer({"w": weight}, settings(learning_rate=0.1, warmup_steps=4))
    assert [moved(weight, optimizer) for _ in range(5)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1], rel=1e-4)


def test_resumed_weights_move_by_the_configured_rate_and_not_by_the_saved_one():
    first = leaf([1.0])
    before = Optimizer({"w": first}, settings(learning_rate=0.1))
    moved(first, before)
    weight = leaf([first.item()])
    resumed = Optimizer({"w": weight}, settings(learning_rate=0.003))
    resumed.restore(before.state())
    assert [moved(weight, resumed) for _ in range(2)] == pytest.approx([0.003, 0.003], rel=1e-3)


def test_decay_acts_on_matrices_alone():
    gain, matrix = leaf([1.0, 1.0]), leaf([[1.0, 1.0]])
    optimizer = Optimizer({"gain": gain, "matrix": matrix}, settings(weight_decay=0.5))
    optimizer.zero()
    optimizer.step("step 0")
    assert gain.tolist() == [1.0, 1.0]
    assert matrix.tolist() == [[pytest.approx(0.95), pytest.approx(0.95)]]


def test_bfloat16_gradients_are_summed_in_float32():
    """1 + 2^-9 is 1 in bfloat16: summed there, 64 such gradients would vanish."""
    weight = leaf([1.0], torch.bfloat16)
    optimizer = Optimizer({"w": weight}, settings(gradient_clip=1e9))
    optimizer.zero()
    for gradient in [1.0] + [2.0**-9] * 64:
        weight.grad = torch.tensor([gradient], dtype=torch.bfloat16)
        optimizer.accumulate()
    assert optimizer.step("step 0")["train/grad_norm"] == pytest.approx(1 + 64 * 2.0**-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(value):
    weight = leaf([[1.0]])
    optimizer = Optimizer({"w": weight}, settings(weight_decay=0.5))
    optimizer.zero()
    (weight * value).sum().backward()
    with pytest.raises(RunError, match="step 7: gradient norm is"):
        optimizer.step("step 7")
    assert weight.tolist() == [[1.0]]
    assert optimizer.updates == 0
    assert optimizer.state()["moments"] == {}
