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
