"""The real vLLM samples, the trainer recomputes with replay, trains, and hands its weights back; twice."""

import dataclasses

import numpy as np
import pytest
from trainer_cases import batch

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.contracts import Inference
from engine.core.records import Row
from engine.samples.alignment import compare_batch

pytestmark = pytest.mark.slow


async def sample(engine: Inference, trajectory: int, temperature: float) -> Row:
    """Two turns of one stream, each sampled by the engine, the second after 40 new prompt tokens."""
    rng = np.random.default_rng(trajectory)
    stream = rng.integers(0, 6000, 200 + 37 * trajectory).astype(np.int32)
    target = np.zeros(len(stream), np.bool_)
    logprobs = np.zeros(len(stream), np.float32)
    versions = np.full(len(stream), -1, np.int32)
    routed = []
    for turn in range(2):
        made = await engine.generate(
            stream,
            max_tokens=60,
            temperature=temperature,
            top_p=1.0,
            seed=trajectory * 2 + turn,
            stop_token_ids=[],
            routed_start=sum(len(part) for part in routed),
            session=f"t{trajectory}",
        )
        routed.append(made.routed_experts)
        extra = rng.integers(0, 6000, 40 if turn == 0 else 0).astype(np.int32)
        stream = np.concatenate([stream, made.token_ids, extra])
        target = np.concatenate([target, np.ones(len(made.token_ids), np.bool_), np.zeros(len(extra), np.bool_)])
        logprobs = np.concatenate([logprobs, made.logprobs, np.zeros(len(extra), np.float32)])
        versions = np.concatenate([versions, made.policy_versions, np.full(len(extra), -1, np.int32)])
    return Row(
        trajectory=trajectory,
        token_ids=stream,
        target=target,
        captured_logprobs=logprobs,
        policy_versions=versions,
        routed_experts=np.concatenate(routed),
        advantage=1.0 if trajectory % 2 else -1.0,
    )


async def test_engine_and_trainer_agree_before_and_after_an_update(tmp_path):
    built = assemble(compose(["experiment=openhands_gspo", "model=tiny_qwen3_moe", "train.learning_rate=1e-3"]))
    await built.model.prepare(lambda _: None)
    model, made, engine = built.model.info(), built.train, built.inference
    made.start(model, built.algorithm, built.routing_replay, 0)
    await engine.start(model, tmp_path / "vllm")
    try:
        for step, temperature in enumerate((1.0, 0.7)):
            rows = [await sample(engine, trajectory, temperature) for trajectory in range(4)]
            of = dataclasses.replace(batch(rows, step=step, temperature=temperature), policy_version=step)
            metrics = made.step(of)
            fresh, stale = compare_batch(of, metrics["old_logprobs"])
            assert fresh.tokens == 4 * 2 * 60
            assert stale.tokens == 0
            assert fresh.pearson_r >= 0.9999
            assert fresh.max_abs_dlogp <= 1e-3
            assert metrics["train/grad_norm"] > 0
            made.export(tmp_path / "weights.safetensors")
            await engine.update_weights(tmp_path / "weights.safetensors", step + 1)
            probe = rows[0].token_ids[:128]
            assert np.abs(await engine.score(probe) - made.score(probe)).max() <= 1e-3
    finally:
        await engine.stop()
        made.stop()
