"""`scale=paper` is the published Table 10, to the digit, wherever a value lives."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.config.compose import compose
from engine.config.schemas import load_registry
from engine.config.validate import problems
from engine.run.plan import Plan, Sampling
from engine.run.settings import Schedule

TABLE = {
    # optimisation
    "algorithm._target_": "engine.train.algorithm.Gspo",
    "algorithm.clip_low": 3e-4,
    "algorithm.clip_high": 4e-4,
    "algorithm.aggregation": "seq-mean-token-mean",
    "algorithm.kl_coefficient": 1e-3,
    "algorithm.kl_estimator": "low_variance",
    "algorithm.kl_in_reward": False,
    "algorithm.importance_correction": "off",
    "algorithm.advantage._target_": "engine.samples.advantages.GroupNormalized",
    "algorithm.advantage.ddof": 1,
    "algorithm.advantage.epsilon": 1e-6,
    "routing_replay.enabled": True,
    "train.learning_rate": 1e-6,
    "train.scheduler": "constant",
    "train.warmup_steps": 0,
    "train.gradient_clip": 1.0,
    "train.mini_batches": 1,
    "train.micro_batch_rows": 1,
    # batches
    "schedule.prompts_per_step": 64,
    "schedule.rollouts_per_prompt": 8,
    "schedule.epochs": 3,
    "schedule.steps": None,
    "schedule.drop_last": True,
    "schedule.staleness_threshold": 1,
    "schedule.partial_rollouts": True,
    # sampling and budgets
    "proxy.temperature": 1.0,
    "proxy.top_p": 1.0,
    "proxy.max_prompt_tokens": 30_000,
    "proxy.max_response_tokens": 170_000,
    "model.max_context": 200_000,
    "harnesses.openhands.max_turns": 200,
    # validation
    "schedule.validation_every": 10,
    "schedule.validation_temperature": 0.7,
    "schedule.validation_samples": 1,
    # what is trained
    "model.name": "qwen3.5-35b-a3b",
    "harnesses.openhands._target_": "engine.harness.openhands.OpenHands",
}

TASKS = 2_699
STEPS_PER_EPOCH = 42
STEPS = 126


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    composed = compose(
        ["experiment=openhands_gspo", "scale=paper", "model.path=/models/Qwen3.5-35B-A3B", "tasks.path=/tasks"]
    )
    assert problems(composed, load_registry()) == []
    return dict(composed.config)


@pytest.mark.parametrize("key", TABLE)
def test_value(config: dict[str, Any], key: str) -> None:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    assert value == TABLE[key]
    assert type(value) is type(TABLE[key])


def test_three_epochs_of_2699_tasks_are_126_steps(config: dict[str, Any]) -> None:
    values = {key: value for key, value in config["schedule"].items() if key != "_target_"}
    plan = Plan(
        run="paper",
        seed=0,
        schedule=Schedule(**values),
        tasks=cast(Any, (SimpleNamespace(split="train"),) * TASKS),
        harnesses=("openhands",),
        rollout=Sampling(temperature=1.0, top_p=1.0),
    )
    assert plan.steps_per_epoch == STEPS_PER_EPOCH
    assert plan.steps == STEPS
