import dataclasses
from functools import partial

import numpy as np
import pytest
from samples_cases import branching, scored, silent, trial

from engine.core.errors import AlignmentError, NoTrainableToken, RunError
from engine.core.records import Scored, Termination, Trajectory
from engine.samples.advantages import GroupNormalized
from engine.samples.groups import make_groups
from engine.samples.rewards import ShuffledInBatch
from engine.samples.rows import make_batch

NORMALISED = GroupNormalized(ddof=1, epsilon=1e-6)


def raw(rewards):
    return tuple(rewards)


EXCLUDED = [termination for termination in Termination if termination.excluded]


# ---------------------------------------------------------------- groups


def test_groups_are_by_task_in_order_with_samples_in_order():
    groups = make_groups([scored(0.0, "b", 1), scored(1.0, "a", 0), scored(1.0, "b", 0)], NORMALISED)
    assert [group.task for group in groups] == ["b", "a"]
    assert [s.trajectory.trial.key.sample for s in groups[0].kept] == [0, 1]
    assert groups[0].advantages[0] > 0 > groups[0].advantages[1]
    assert groups[1].advantages == (0.0,)


def test_trials_of_one_task_are_one_group_whatever_harness_ran_them():
    def by(harness, reward, sample):
        one = scored(reward, sample=sample)
        ran = dataclasses.replace(one.trajectory.trial, harness=harness)
        return dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, trial=ran))

    (group,) = make_groups([by("openhands", 1.0, 0), by("claude_code", 0.0, 1)], NORMALISED)
    assert [one.trajectory.trial.harness for one in group.kept] == ["openhands", "claude_code"]
    assert group.advantages[0] == -group.advantages[1] > 0.7, "compared with each other"


def test_epochs_are_groups_of_their_own():
    groups = make_groups([scored(1.0, epoch=0), scored(0.0, epoch=1)], NORMALISED)
    assert [group.advantages for group in groups] == [(0.0,), (0.0,)]


def test_a_placebo_deals_the_batch_s_rewards_out_anew_and_reports_them_as_judged():
    judged = [scored(float(task == "a" and sample < 3), task, sample) for task in "abc" for sample in range(4)]
    deal = partial(ShuffledInBatch(seed=1), step=0)
    groups = make_groups(judged, raw, deal)
    assert [s.verdict.reward for group in groups for s in group.kept if s.verdict] == [1.0] * 3 + [0.0] * 9
    dealt = [value for group in groups for value in group.advantages]
    assert sorted(dealt) == [0.0] * 9 + [1.0] * 3
    assert dealt != [1.0] * 3 + [0.0] * 9
    assert dealt == [value for group in make_groups(judged, raw, deal) for value in group.advantages]
    assert dealt != [
        v for group in make_groups(judged, raw, partial(ShuffledInBatch(seed=1), step=1)) for v in group.advantages
    ]


def test_a_rule_that_loses_rewards_is_refused():
    with pytest.raises(RunError, match="1 for 2 kept"):
        make_groups([scored(1.0), scored(0.0, sample=1)], raw, lambda rewards: rewards[:1])


@pytest.mark.parametrize("termination", EXCLUDED)
def test_excluded_trajectories_enter_no_statistic(termination):
    kept = [scored(1.0, sample=0), scored(0.0, sample=1)]
    out = [scored(None, sample=2, termination=termination), scored(0.0, sample=3, termination=termination)]
    [with_them] = make_groups([*kept, *out], NORMALISED)
    [without] = make_groups(kept, NORMALISED)
    assert with_them.advantages == without.advantages
    assert len(with_them.excluded) == 2


def test_a_group_of_excluded_ones_is_kept_for_the_reports():
    [group] = make_groups([scored(None, termination=Termination.SANDBOX_LOST)], NORMALISED)
    assert group.kept == ()
    assert group.advantages == ()
    assert len(group.excluded) == 1


def test_a_retry_takes_the_place_of_the_failure():
    lost = scored(None, sample=0, termination=Termination.SANDBOX_LOST)
    [group] = make_groups([lost, scored(1.0, sample=0, attempt=1), scored(0.0, sample=1)], NORMALISED)
    assert [s.trajectory.trial.key.attempt for s in group.kept] == [1, 0]


def test_a_kept_trajectory_without_verdict_is_refused():
    with pytest.raises(RunError, match=r"trial e0-t-s0-a0 ended with agent_completed and has no verdict"):
        make_groups([scored(None)], NORMALISED)


def test_a_sample_that_was_kept_twice_is_refused():
    with pytest.raises(RunError, match="sample 0 of task t was kept twice; the second is e0-t-s0-a1"):
        make_groups([scored(1.0), scored(0.0, attempt=1)], NORMALISED)


def test_a_validation_trajectory_is_refused():
    validation = dataclasses.replace(trial(), split="validation")
    item = Scored(trajectory=branching(validation), verdict=scored(1.0).verdict)
    with pytest.raises(RunError, match="split 'validation'"):
        make_groups([item], NORMALISED)


def test_a_wrong_number_of_advantages_is_refused():
    with pytest.raises(RunError, match="1 advantages for 2"):
        make_groups([scored(1.0), scored(0.0, sample=1)], lambda rewards: (0.0,))


# ---------------------------------------------------------------- rows


def make(items, **changes):
    return make_batch(make_groups(items, NORMALISED), **({"step": 5, "policy_version": 3} | changes))


def test_one_row_per_segment_with_one_advantage_per_trajectory():
    items = [scored(1.0), scored(0.0, sample=1)]
    batch = make(items)
    assert batch.trajectories == 2
    assert [row.trajectory for row in batch.rows] == [0, 0, 0, 1, 1, 1]
    assert len({row.advantage for row in batch.rows[:3]}) == 1
    assert batch.rows[0].advantage > 0 > batch.rows[3].advantage
    assert (batch.step, batch.policy_version, batch.temperature) == (5, 3, 1.0)
    for row, segment in zip(batch.rows, items[0].trajectory.segments, strict=False):
        assert row.token_ids is segment.token_ids
        assert row.captured_logprobs is segment.logprobs
        assert row.routed_experts is segment.routed_experts


def test_excluded_trajectories_leave_no_row_and_no_place_in_the_denominator():
    kept = [scored(1.0), scored(0.0, sample=1)]
    batch = make([*kept, scored(None, sample=2, termination=Termination.AGENT_TIMEOUT)])
    assert batch.trajectories == 2
    assert len(batch.rows) == len(make(kept).rows)


def test_a_kept_trajectory_that_sampled_nothing_stays_in_the_denominator():
    batch = make([silent(scored(1.0)), scored(0.0, sample=1)])
    assert batch.trajectories == 2
    assert {row.trajectory for row in batch.rows} == {1}


def test_groups_without_variance_are_trainable():
    """The KL still acts on their tokens; whether anything trains is the algorithm's to say."""
    batch = make([scored(0.0), scored(0.0, sample=1)])
    assert {row.advantage for row in batch.rows} == {0.0}


def test_a_batch_without_any_target_is_refused():
    items = [silent(scored(1.0)), scored(None, sample=1, termination=Termination.SETUP_FAILED)]
    with pytest.raises(NoTrainableToken) as refused:
        make(items)
    assert str(refused.value) == (
        "step 5: 1 kept and 1 excluded trajectories (setup_failed 1) hold no sampled token, so nothing can be trained; "
        "mend what the run's ledger/step=5.jsonl names as reasons, or the harness's rule for side calls"
    )
    timed_out = [scored(None, sample=1, termination=Termination.AGENT_TIMEOUT)]
    with pytest.raises(NoTrainableToken, match=r"\(agent_timeout 1\) .*, or raise tasks\.agent_timeout_s, the agent's"):
        make(timed_out)
    assert refused.value.exit_code == 3
    with pytest.raises(NoTrainableToken, match="step 5: 0 kept and 0 excluded"):
        make([])


def test_an_all_zero_mask_is_refused():
    """rllm#352: a history that did not accumulate gave an all-zero mask, and the run learned nothing in silence."""
    item = scored(1.0)
    masked = tuple(
        dataclasses.replace(segment, target=np.zeros_like(segment.target)) for segment in item.trajectory.segments
    )
    with pytest.raises(NoTrainableToken, match="1 kept"):
        make([Scored(trajectory=dataclasses.replace(item.trajectory, segments=masked), verdict=item.verdict)])


def test_mixed_temperatures_are_refused():
    with pytest.raises(RunError, match=r"temperatures \[0.7, 1.0\]"):
        make([scored(1.0), scored(0.0, sample=1, temperature=0.7)])


def broken(**changes) -> list[Scored]:
    item = scored(1.0)
    trajectory: Trajectory = item.trajectory
    first = dataclasses.replace(trajectory.segments[0], **changes)
    return [Scored(trajectory=dataclasses.replace(trajectory, segments=(first,)), verdict=item.verdict)]


GOOD = scored(1.0).trajectory.segments[0]
N = len(GOOD.token_ids)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": GOOD.target[:-1]}, f"{N - 1} rows of target for {N} tokens"),
        ({"logprobs": GOOD.logprobs[:-1]}, f"{N - 1} rows of logprobs for {N} tokens"),
        ({"policy_versions": np.append(GOOD.policy_versions, 3)}, f"{N + 1} rows of policy_versions for {N} tokens"),
        ({"routed_experts": np.zeros((N, 2, 2), np.uint8)}, f"{N} rows of routed experts for {N} tokens; {N - 1} are"),
        ({"routed_experts": np.zeros((N - 2, 2, 2), np.uint8)}, f"{N - 2} rows of routed experts for {N} tokens"),
        ({"target": np.ones(N, np.bool_)}, "position 0 is a target"),
        ({"logprobs": np.where(GOOD.target, np.float32("nan"), 0)}, "log-probability nan at position 3"),
        ({"logprobs": np.where(GOOD.target, np.float32("-inf"), 0)}, "log-probability -inf at position 3"),
        ({"logprobs": np.where(GOOD.target, np.float32(0.5), 0)}, "log-probability 0.5 at position 3"),
        ({"policy_versions": np.full(N, -1)}, "versions -1 to -1"),
        ({"policy_versions": np.full(N, 4)}, "sampled by versions 4 to 4; the trainer's weights are version 3"),
    ],
)
def test_streams_that_do_not_fit_are_refused_naming_trial_and_numbers(changes, words):
    with pytest.raises(AlignmentError, match=f"trial e0-t-s0-a0, segment 0: .*{words}"):
        make(broken(**changes))
