"""Intervals against known ones, and what they must not depend on."""

import numpy as np
import pytest

from engine.observe.estimates import change, estimate, pooled, wilson


def test_wilson_against_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17: 857-872, table I, method 3
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_no_trial_no_estimate() -> None:
    assert estimate({}) is None
    assert estimate({"a": []}) is None
    assert change({}, {"a": [1.0]}) is None


def test_one_task_or_equal_rewards_get_wilsons_interval() -> None:
    alone = estimate({"a": [1.0, 0.0, 0.0, 1.0]})
    assert alone is not None
    assert (alone.mean, alone.trials, alone.tasks) == (0.5, 4, 1)
    assert (alone.low, alone.high) == wilson(0.5, 4)
    equal = estimate({"a": [0.0] * 10, "b": [0.0] * 10})
    assert equal is not None
    assert (equal.low, equal.high) == wilson(0.0, 20)


def test_tasks_of_one_mean_are_no_certainty() -> None:
    """Whichever tasks are drawn, the mean is the same: that says nothing about how sure it is."""
    for third in ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0] * 7):
        found = estimate({"a": [0.0, 0.0, 1.0], "b": third})
        assert found is not None
        assert (found.low, found.high) == wilson(found.mean, found.trials)


def test_tasks_are_drawn_whole() -> None:
    """Trials that agree within their task are worth little more than one trial a task."""
    agreeing = estimate({f"t{i}": [float(i % 2)] * 16 for i in range(16)})
    spread = estimate({f"t{i}": [0.0, 1.0] * 8 for i in range(15)} | {"t15": [0.0] * 9 + [1.0] * 7})
    assert agreeing is not None
    assert spread is not None
    # standard error of 16 independent halves: 0.125
    assert agreeing.high - agreeing.low == pytest.approx(2 * 1.96 * 0.125, rel=0.1)
    assert spread.high - spread.low < 0.1


def test_the_order_of_tasks_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    rewards = {f"t{i}": rng.integers(0, 2, 8).astype(float).tolist() for i in range(8)}
    assert estimate(rewards) == estimate(dict(reversed(rewards.items())))


def test_a_change_against_newcombes_example() -> None:
    # Newcombe 1998, Statistics in Medicine 17: 873-890, table II, method 10: 56/70 against 48/80
    found = change({"a": [1.0] * 48 + [0.0] * 32}, {"a": [1.0] * 56 + [0.0] * 14})
    assert found is not None
    assert found.difference == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_pooling_keeps_every_trial() -> None:
    assert pooled([{"a": [1.0], "b": [0.0]}, {"a": [0.0, 1.0]}]) == {"a": [1.0, 0.0, 1.0], "b": [0.0]}
