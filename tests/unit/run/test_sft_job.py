"""`job=sft`: which trials its gate plans, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
from plan_pieces import tasks

from engine.core.errors import ConfigError
from engine.run.jobs.sft import SftJob

JOB = SftJob(gate_trials=5, goals={"valid_calls": 0.95, "junk": 0.1, "solve_low": 0.25, "solve_high": 0.5})


def pool(*found: Any) -> Any:
    return SimpleNamespace(
        tasks=SimpleNamespace(load=lambda: found),
        config={"tasks": {"_target_": "engine.tasks.laptop.LaptopPool"}},
        harnesses={"b": None, "a": None},
        proxy=SimpleNamespace(temperature=0.7, top_p=1.0),
        seed=0,
    )


def test_training_tasks_go_round_and_harnesses_take_turns() -> None:
    trials = JOB._trials(pool(*tasks(2, 1)))
    tried = [trial.key.task for trial in trials]
    assert tried[:2] == tried[2:4] and tried[4] == tried[0]
    assert len(set(tried)) == 2 and {trial.task.split for trial in trials} == {"train"}
    assert [trial.harness for trial in trials] == ["a", "b", "a", "b", "a"]
    assert len({trial.key for trial in trials}) == len({trial.seed for trial in trials}) == 5


def test_a_pool_without_training_tasks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"LaptopPool': has no training task to try; choose a pool"):
        JOB._trials(pool(*tasks(0, 1)))
