"""A real pretrained dense model, from its package, through the loop: mini-swe-agent in plain text, vLLM, GSPO."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
from rewarded_run import EverySecondOne

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.compose import compose
from engine.run.jobs.prepare import PrepareJob
from engine.run.jobs.train import TrainJob
from engine.store.layout import Layout
from engine.store.reader import Reader

pytestmark = pytest.mark.slow
SMALL = (
    "experiment=mini_swe_agent_gspo",
    "model=smollm2_135m",
    "tasks=release_pairs",
    "schedule=proof",
    "proxy=short",
    "train=pretrained",
    "harnesses.mini_swe_agent.native_tool_calling=false",
    "schedule.steps=1",
    "schedule.prompts_per_step=1",
    "schedule.rollouts_per_prompt=2",
    "schedule.validation_every=0",
    "proxy.max_tokens_per_turn=64",
    "observe.tensorboard=false",
)


def built(*overrides: str) -> Built:
    return assemble(compose([*SMALL, *overrides]))


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """Fetched and converted, images and tasks built: minutes, once per machine."""
    assert asyncio.run(PrepareJob().run(built("job=prepare"))) == 0


def test_a_step_on_a_release_pair(tmp_path: Path) -> None:
    """Trained = sampled; engine and trainer agree before and after the update.

    Routing replay is on: for a dense model it replays nothing."""
    made = built(f"run.root={tmp_path}")
    assert made.routing_replay.enabled and made.model.info().num_layers == 0
    made = dataclasses.replace(made, verify=EverySecondOne(made.verify))
    assert asyncio.run(TrainJob().run(made)) == 0
    reader = Reader(Layout(root=made.directory))
    (step,) = reader.steps()
    metrics = step.metrics
    assert metrics["tokens/sampled"] == metrics["tokens/trained"] > 0
    assert metrics["alignment/pearson_r"] >= 0.9999
    assert metrics["alignment/max_abs_dlogp"] <= 1e-3
    assert metrics["train/grad_norm"] > 0
    assert metrics["probe/max_abs_dlogp"] <= 1e-3
