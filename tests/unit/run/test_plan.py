"""The plan is a pure function of configuration and step."""

import dataclasses

import pytest
from plan_pieces import SCHEDULE, tasks

from engine.core.errors import ConfigError
from engine.run.plan import Plan, Sampling, derived_seed


def plan(count: int, **changes: object) -> Plan:
    return Plan(
        run="r",
        seed=0,
        schedule=dataclasses.replace(SCHEDULE, **changes),  # type: ignore[arg-type]
        tasks=tasks(count, 2),
        harnesses=("a", "b"),
        rollout=Sampling(temperature=1.0, top_p=1.0),
    )


def test_each_epoch_visits_each_task_once_in_a_new_order() -> None:
    made = plan(8)
    assert made.steps == 6
    epochs = [[task.id for step in (2 * e, 2 * e + 1) for task in made.batch(step)] for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == [f"t{i:02d}" for i in range(8)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [task.id for task in made.batch(3)] == [task.id for task in plan(8).batch(3)]


def test_the_incomplete_batch_is_dropped_or_kept() -> None:
    assert plan(10).steps_per_epoch == 2
    kept = plan(10, drop_last=False)
    assert kept.steps_per_epoch == 3
    assert len(kept.batch(2)) == 2


def test_the_published_run_has_126_steps() -> None:
    assert plan(2699, prompts_per_step=64, rollouts_per_prompt=8).steps == 126


def test_trials_of_a_step() -> None:
    made = plan(8)
    trials = made.trials(3, version=3)
    assert len(trials) == 8
    assert {trial.policy_version for trial in trials} == {3}
    assert {trial.key.epoch for trial in trials} == {1}
    assert [trial.harness for trial in trials[:2]] == ["a", "b"]
    assert len({trial.seed for trial in trials}) == 8
    held_out = made.validation(3, version=4)
    assert [trial.key.task for trial in held_out] in (["v0"] * 3, ["v1"] * 3)
    assert {trial.temperature for trial in held_out} == {0.7}


def mixed(count: int, by: str, weights: dict[str, float] | None, **changes: object) -> Plan:
    return plan(count, harness_mix={"by": by, "weights": weights}, **changes)


def test_a_mix_by_trajectory_has_every_harness_in_every_group() -> None:
    made = mixed(8, "trajectory", {"a": 3, "b": 1}, rollouts_per_prompt=6)
    had = {"a": 0, "b": 0}
    for step in range(made.steps):
        trials = made.trials(step, version=step)
        for start in range(0, len(trials), 6):
            group = [trial.harness for trial in trials[start : start + 6]]
            assert {trial.key.task for trial in trials[start : start + 6]} == {trials[start].key.task}
            assert sorted(group) in (list("aaaabb"), list("aaaaab")), "4.5 of a and 1.5 of b"
        for trial in trials:
            had[trial.harness] += 1
        assert had["a"] == 3 * had["b"], "four groups make it come out even"


def test_a_mix_by_task_gives_a_group_to_one_harness() -> None:
    made = mixed(9, "task", {"a": 2, "b": 1}, prompts_per_step=3, drop_last=False)
    of_groups = []
    for step in range(made.steps):
        trials = made.trials(step, version=0)
        of_groups += [{trial.harness for trial in trials[start : start + 2]} for start in range(0, len(trials), 2)]
    assert [len(group) for group in of_groups] == [1] * 27
    assert sum(group == {"a"} for group in of_groups) == 18
    assert [trial.harness for trial in made.trials(4, version=9)] == [t.harness for t in made.trials(4, version=0)]


def test_groups_of_short_batches_are_counted_as_they_are() -> None:
    made = mixed(5, "task", None, prompts_per_step=4, drop_last=False)
    assert made.steps == 6
    harnesses = [trial.harness for step in range(6) for trial in made.trials(step, version=0)]
    assert harnesses == [name for place in range(15) for name in "ab"[place % 2] * 2]


def test_held_out_tasks_keep_their_harnesses() -> None:
    made = mixed(8, "trajectory", None, validation_prompts=2, validation_samples=1)
    first = [(trial.key.task, trial.harness) for trial in made.validation(0, 0)]
    assert [harness for _, harness in first] == ["a", "b"]
    assert [(trial.key.task, trial.harness) for trial in made.validation(5, 5)] == first


def test_keys_and_seeds_of_trials_are_the_same_whatever_the_mix() -> None:
    plain = [(trial.key, trial.seed) for trial in plan(8).trials(1, version=1)]
    assert [(trial.key, trial.seed) for trial in mixed(8, "task", {"a": 5, "b": 1}).trials(1, version=1)] == plain


def test_a_mix_by_task_too_short_for_one_of_its_harnesses_is_refused() -> None:
    made = mixed(8, "task", {"a": 99, "b": 1})
    with pytest.raises(ConfigError) as refused:
        made.check()
    assert str(refused.value) == (
        "schedule.harness_mix.by='task': the run trains on 24 groups, too few for one of harness b (one in 100); "
        "give it more weight, mix by trajectory, or train for more steps"
    )
    mixed(8, "task", {"a": 23, "b": 1}).check()


def test_all_held_out_tasks_when_no_number_is_given() -> None:
    assert len(plan(8, validation_prompts=None).validation(0, 1)) == 6


def test_validation_tasks_are_drawn_by_the_seed_and_stay_the_same() -> None:
    def drawn(seed: int, step: int) -> list[str]:
        made = dataclasses.replace(plan(8, validation_prompts=4, validation_samples=1), seed=seed, tasks=tasks(8, 40))
        return [trial.key.task for trial in made.validation(step, step + 1)]

    assert drawn(0, 0) == drawn(0, 3)
    assert len(set(drawn(0, 0))) == 4
    seeds = [frozenset(drawn(seed, 0)) for seed in range(5)]
    assert len(set(seeds)) == 5
    assert seeds.count(frozenset({"v0", "v1", "v2", "v3"})) == 0


def test_a_pool_that_never_fills_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.prompts_per_step=4: the pool has 3 training tasks"):
        plan(3).check()


def test_a_pool_without_training_tasks_is_refused() -> None:
    held_out = dataclasses.replace(plan(0), tasks=tasks(0, 2))
    with pytest.raises(ConfigError, match=r"tasks\.validation=\['v0', 'v1'\]: all tasks of the pool are held out"):
        held_out.check()


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        dataclasses.replace(plan(0), tasks=()).check()
    assert str(refused.value) == "tasks=[]: the pool is empty; choose another pool, or settings that give tasks"


def test_seeds_differ_by_any_part() -> None:
    assert derived_seed(0, "a", 1) == derived_seed(0, "a", 1)
    assert len({derived_seed(s, p, i) for s in (0, 1) for p in "ab" for i in range(5)}) == 20
