import dataclasses

import numpy as np
import pytest
from samples_cases import scored, silent

from engine.core.errors import AlignmentError
from engine.core.records import Batch, Row
from engine.samples.advantages import GroupNormalized
from engine.samples.alignment import check_batch, check_trajectory, compare, compare_batch, pearson
from engine.samples.groups import make_groups
from engine.samples.rows import make_batch

SAMPLED = 3 + 2 + 1 + 4
"""Of `samples_cases.branching`: neither the side call nor the lost turn counts."""


def groups_and_batch(*items):
    groups = make_groups(items, GroupNormalized(ddof=1, epsilon=1e-6))
    return groups, make_batch(groups, step=5, policy_version=3)


# ---------------------------------------------------------------- identity


def test_trained_tokens_are_the_sampled_tokens():
    groups, batch = groups_and_batch(scored(1.0), scored(0.0, sample=1), silent(scored(0.0, sample=2)))
    counts = check_batch(groups, batch)
    assert counts.sampled == counts.trained == 2 * SAMPLED


def test_each_row_is_checked_by_position():
    groups, batch = groups_and_batch(scored(1.0))
    trajectory = groups[0].kept[0].trajectory
    assert check_trajectory(trajectory, batch.rows).trained == SAMPLED


def changed(number: int, **changes):
    groups, batch = groups_and_batch(scored(1.0))
    rows = list(batch.rows)
    rows[number] = dataclasses.replace(rows[number], **changes)
    return groups, dataclasses.replace(batch, rows=tuple(rows))


def patched(values, at: int, value):
    copy = values.copy()
    copy[at] = value
    return copy


ROWS = groups_and_batch(scored(1.0))[1].rows


@pytest.mark.parametrize(
    ("number", "changes", "words"),
    [
        (0, {"token_ids": patched(ROWS[0].token_ids, 4, 99)}, "segment 0: token ids differ at 1 positions, first at 4"),
        (0, {"token_ids": patched(ROWS[0].token_ids, 0, 99)}, "token ids differ at 1 positions, first at 0"),
        (0, {"target": patched(ROWS[0].target, 4, False)}, "targets differ"),
        (1, {"target": patched(ROWS[1].target, 4, True)}, "segment 1: targets differ"),
        (
            0,
            {"captured_logprobs": patched(ROWS[0].captured_logprobs, 4, np.nextafter(ROWS[0].captured_logprobs[4], 0))},
            "captured log-probabilities differ at 1 positions, first at 4",
        ),
        (0, {"captured_logprobs": ROWS[0].captured_logprobs * 0}, "captured log-probabilities differ at 5"),
        (2, {"policy_versions": np.where(ROWS[2].target, 3, -1)}, "segment 2: policy versions differ at 4"),
        (0, {"token_ids": ROWS[0].token_ids[:-1]}, "8 token ids in the row, 9 captured"),
    ],
)
def test_any_difference_is_refused_naming_the_trial(number, changes, words):
    groups, batch = changed(number, **changes)
    with pytest.raises(AlignmentError, match=f"trial e0-t-s0-a0.*({words})"):
        check_batch(groups, batch)


def test_sampled_tokens_in_no_segment_are_refused():
    groups, batch = groups_and_batch(scored(1.0))
    [kept] = groups[0].kept
    trajectory = dataclasses.replace(kept.trajectory, segments=kept.trajectory.segments[:2])
    with pytest.raises(AlignmentError, match="trial e0-t-s0-a0: sampled tokens of exchanges x5 are in no segment"):
        check_trajectory(trajectory, batch.rows[:2])


def test_a_token_trained_twice_is_refused():
    groups, _ = groups_and_batch(scored(1.0))
    [kept] = groups[0].kept
    first = kept.trajectory.segments[0]
    trajectory = dataclasses.replace(kept.trajectory, segments=(*kept.trajectory.segments, first))
    item = dataclasses.replace(kept, trajectory=trajectory)
    groups, batch = groups_and_batch(item)
    with pytest.raises(AlignmentError, match="segment 3: targets differ at 5"):
        check_batch(groups, batch)


def test_trained_side_calls_and_lost_turns_are_refused():
    for name in ("x1", "x2"):
        groups, _ = groups_and_batch(scored(1.0))
        [kept] = groups[0].kept
        exchanges = tuple(dataclasses.replace(x, kind="policy") for x in kept.trajectory.exchanges)
        as_policy = next(x for x in exchanges if x.id == name)
        trajectory = dataclasses.replace(kept.trajectory, exchanges=(*kept.trajectory.exchanges, as_policy))
        with pytest.raises(AlignmentError, match=f"exchanges {name} are in no segment"):
            check_trajectory(trajectory, ROWS)


def test_a_path_that_is_not_one_is_refused():
    [kept] = groups_and_batch(scored(1.0))[0][0].kept
    for path, words in (
        (("x3",), "exchange x3 has parent x0, its segment has None"),
        (("x0", "x9"), "exchange 'x9', which was not captured"),
        ((), "names no exchange"),
    ):
        first = dataclasses.replace(kept.trajectory.segments[0], exchanges=path)
        trajectory = dataclasses.replace(kept.trajectory, segments=(first, *kept.trajectory.segments[1:]))
        with pytest.raises(AlignmentError, match=words):
            check_trajectory(trajectory, ROWS)


def test_a_wrong_prompt_length_is_refused():
    [kept] = groups_and_batch(scored(1.0))[0][0].kept
    exchanges = tuple(dataclasses.replace(x, prompt_length=9) if x.id == "x3" else x for x in kept.trajectory.exchanges)
    with pytest.raises(AlignmentError, match="exchange x3 has a prompt of 9, not 7"):
        check_trajectory(dataclasses.replace(kept.trajectory, exchanges=exchanges), ROWS)


def test_a_batch_of_other_trajectories_is_refused():
    groups, batch = groups_and_batch(scored(1.0))
    with pytest.raises(AlignmentError, match="counts 2 trajectories; 1 were kept"):
        check_batch(groups, dataclasses.replace(batch, trajectories=2))
    with pytest.raises(AlignmentError, match="2 rows for 3 segments"):
        check_batch(groups, dataclasses.replace(batch, rows=batch.rows[:2]))
    stray = dataclasses.replace(batch.rows[0], trajectory=7)
    with pytest.raises(AlignmentError, match=r"unknown trajectories \[7\]"):
        check_batch(groups, dataclasses.replace(batch, rows=(*batch.rows, stray)))


# ---------------------------------------------------------------- agreement


def test_statistics_are_over_probabilities_and_k3():
    rng = np.random.default_rng(0)
    captured = np.log(rng.uniform(0.01, 1.0, 500))
    again = captured + rng.normal(0, 0.05, 500)
    index = np.repeat([0, 4], 250)
    found = compare(captured, again, index)
    assert found.tokens == 500
    assert found.pearson_r == pytest.approx(np.corrcoef(np.exp(captured), np.exp(again))[0, 1], abs=1e-12)
    d = again - captured
    assert found.kl == pytest.approx(float(np.mean(np.exp(d) - 1 - d)), abs=1e-15)
    assert found.max_abs_dlogp == pytest.approx(float(np.abs(d).max()))
    assert found.trajectory_abs_dlogp == pytest.approx({0: abs(float(d[:250].mean())), 4: abs(float(d[250:].mean()))})


def test_equal_sides_agree_wholly():
    logprobs = np.linspace(-3, -0.1, 20)
    found = compare(logprobs, logprobs.copy(), np.zeros(20, np.int64))
    assert (found.kl, found.max_abs_dlogp) == (0.0, 0.0)
    assert found.pearson_r == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("values", [[], [0.3], [0.3, 0.3]])
def test_an_undefined_correlation_is_nan_and_not_a_pass(values):
    assert np.isnan(pearson(np.array(values), np.array(values)))


def test_stale_tokens_are_reported_apart():
    _, batch = groups_and_batch(scored(1.0))
    recomputed = [row.captured_logprobs + np.float32(0.25) * (row.policy_versions == 2) for row in batch.rows]
    fresh, stale = compare_batch(batch, recomputed)
    assert (fresh.tokens, stale.tokens) == (6, 4)
    assert fresh.max_abs_dlogp == 0.0
    assert stale.max_abs_dlogp == pytest.approx(0.25)
    assert stale.trajectory_abs_dlogp == pytest.approx({0: 0.25})


def test_no_stale_token_is_no_error():
    row = Row(
        trajectory=0,
        token_ids=np.array([1, 2], np.int32),
        target=np.array([False, True]),
        captured_logprobs=np.array([0, -1], np.float32),
        policy_versions=np.array([-1, 0], np.int32),
        routed_experts=None,
        advantage=0.0,
    )
    batch = Batch(step=0, policy_version=0, rows=(row,), trajectories=1, temperature=1.0)
    fresh, stale = compare_batch(batch, [row.captured_logprobs])
    assert (fresh.tokens, stale.tokens, stale.kl, stale.max_abs_dlogp) == (1, 0, 0.0, 0.0)
    assert not stale.trajectory_abs_dlogp


def test_recomputed_values_that_do_not_fit_are_refused():
    _, batch = groups_and_batch(scored(1.0))
    with pytest.raises(AlignmentError, match="2 recomputed rows for 3 rows"):
        compare_batch(batch, [row.captured_logprobs for row in batch.rows[:2]])
    with pytest.raises(AlignmentError, match="row 0: 7 recomputed values for 9 tokens"):
        compare_batch(batch, [batch.rows[0].captured_logprobs[:7], *(r.captured_logprobs for r in batch.rows[1:])])
