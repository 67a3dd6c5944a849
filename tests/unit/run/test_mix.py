"""Which harness runs which trial: exact proportions, whatever the weights, and the plain turns without them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.run.mix import By, HarnessMix, shares

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([1, 2, 3, 5, 0.1, 0.7, 7.25, 1e-2]), min_size=1)


def mix(by: By, weights: dict[str, float] | None, names: str = "ab") -> HarnessMix:
    return HarnessMix(by=by, shares=shares(weights or names, weights))


@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 9), st.sampled_from(["trajectory", "task"]))
def test_every_harness_has_its_exact_share_after_any_number_of_groups(
    weights: dict[str, float], size: int, by: By
) -> None:
    made, had = mix(by, weights), dict.fromkeys(weights, 0)
    exact = {
        name: Fraction(str(weight)) / sum(Fraction(str(one)) for one in weights.values())
        for name, weight in weights.items()
    }
    for place in range(40):
        group = made.group(place, size)
        assert len(group) == size
        for name, share in exact.items():
            count = group.count(name)
            if by == "task":
                assert count in (0, size)
                count = min(count, 1)
            else:
                assert count >= int(share * size), "in every group its share, rounded down"
            had[name] += count
            assert abs(had[name] - share * (place + 1) * (1 if by == "task" else size)) < 1


def test_without_weights_harnesses_take_turns() -> None:
    for place in range(3):
        assert mix("trajectory", None).group(place, 4) == list("abab")
    assert mix("trajectory", None, "abc").group(0, 8) == list("abcabcab")
    assert [mix("task", None).group(place, 2) for place in range(3)] == [["a", "a"], ["b", "b"], ["a", "a"]]


def test_what_is_left_over_goes_round() -> None:
    groups = [mix("trajectory", None, "abc").group(place, 4) for place in range(3)]
    assert [group[-1] for group in groups] == ["a", "b", "c"]


def test_weights_are_kept_in_each_group_that_they_fit() -> None:
    assert mix("trajectory", {"a": 3, "b": 1}).group(5, 8) == list("ababaaaa")


def test_the_order_in_which_a_mix_is_written_changes_nothing() -> None:
    assert mix("task", {"b": 2, "a": 1}).group(1, 3) == mix("task", {"a": 1, "b": 2}).group(1, 3)
    assert mix("trajectory", None, "ba").group(0, 2) == ["a", "b"]


@pytest.mark.parametrize("weight", [1e-9, 0.123456789])
def test_odd_weights_cost_no_more_than_the_run_is_long(weight: float) -> None:
    made = mix("trajectory", {"a": 1, "b": weight})
    assert {len(made.group(place, 8)) for place in (0, 20_000)} == {8}
