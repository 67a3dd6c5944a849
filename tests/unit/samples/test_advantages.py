import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import RunError
from engine.samples.advantages import GroupNormalized

NORMALISED = GroupNormalized(ddof=1, epsilon=1e-6)


def test_is_the_published_formula_with_the_sample_deviation():
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0]
    deviation = math.sqrt(sum((r - 0.4) ** 2 for r in rewards) / 4)
    expected = [(r - 0.4) / (deviation + 1e-6) for r in rewards]
    assert NORMALISED(rewards) == pytest.approx(expected, abs=1e-12)


def test_population_deviation_on_demand():
    assert GroupNormalized(ddof=0, epsilon=1e-6)([1.0, 0.0]) == pytest.approx((0.5 / 0.500001, -0.5 / 0.500001))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("rewards", [[], [1.0], [0.0, 0.0], [0.1] * 7, [1.0] * 8])
def test_a_group_that_tells_nothing_apart_gives_exactly_zero(rewards, ddof):
    """0.1 * 7 / 7 is not 0.1 in floating point; divided by epsilon the difference would become an advantage."""
    assert GroupNormalized(ddof=ddof, epsilon=1e-12)(rewards) == (0.0,) * len(rewards)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(RunError, match="is not finite"):
        NORMALISED([0.0, reward])


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=16))
def test_advantages_sum_to_zero_keep_the_order_and_have_unit_scale(rewards):
    advantages = NORMALISED(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    for a, b in itertools.pairwise(rewards):
        i = rewards.index(a), rewards.index(b)
        assert (a < b) == (advantages[i[0]] < advantages[i[1]])
    if len(set(rewards)) > 1:
        assert float(np.std(advantages, ddof=1)) == pytest.approx(1.0, abs=1e-4)
