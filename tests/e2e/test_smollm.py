"""A real pretrained dense model, from its package, through the loop: mini-swe-agent in plain text, vLLM, GSPO."""

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from rewarded_run import EverySecondOne
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.compose import compose
from engine.run.jobs.prepare import PrepareJob
from engine.run.jobs.train import TrainJob
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.tokens import load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

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
    "train.learning_rate=3e-4",  # wrong weights after the update must show
    "train.warmup_steps=0",
    "observe.tensorboard=false",
)


def built(*overrides: str) -> Built:
    return assemble(compose([*SMALL, *overrides]))


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """Fetched and converted, images and tasks built: minutes, once per machine."""
    assert asyncio.run(PrepareJob(registry=None, plain_http=False).run(built("job=prepare"))) == 0


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
    before = load_file(made.model.info().path / "model.safetensors")["model.norm.weight"]
    after = load_file(Layout(root=made.directory).checkpoint(1) / "weights.safetensors")["model.norm.weight"]
    assert (before - after).abs().max() > 1e-4


def test_the_unpacked_model_knows_english_and_python() -> None:
    """Mean log-probabilities of text, against those of the same tokens in another order."""
    folder = built().model.info().path
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), CheckpointTokenizer(folder)
    text = "The function returns the sum of two numbers.\n\ndef add(a, b):\n    return a + b\n"
    ids = torch.tensor([tokenizer.encode(text)])
    shuffled = ids[:, torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(0))]
    with torch.no_grad():
        right, wrong = (-float(model(row, labels=row).loss) for row in (ids, shuffled))
    assert right > -3 > -6 > wrong, (right, wrong)


def test_a_stream_that_grows_is_the_template_of_the_whole() -> None:
    info = built().model.info()
    renderer, encode = load_renderer(info), CheckpointTokenizer(info.path).encode
    chat = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": "Ünïcode 2029 🐍\n\tx"}]
    stream = renderer.render(chat, [])
    for turn in range(3):
        answer = {"role": "assistant", "content": f"THOUGHT: {turn}\n\n```mswea_bash_command\nls -la {turn}\n```"}
        result = {"role": "user", "content": f"<returncode>{turn}</returncode>\n<output>\nx.py</output>"}
        sampled = np.array(encode(answer["content"] + "<|im_end|>"), np.int32)
        assert renderer.parse(stream, sampled, []).content == answer["content"]
        tail = renderer.extend(stream, sampled, [result], [])
        assert tail is not None
        stream, chat = np.concatenate([stream, sampled, tail]), [*chat, answer, result]
        assert stream.tolist() == renderer.render(chat, []).tolist()
