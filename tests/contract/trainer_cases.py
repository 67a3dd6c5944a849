"""Small models, rows and trainers for the trainer's tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine.core.records import Batch, Row
from engine.core.specs import ModelInfo
from engine.samples.advantages import GroupNormalized
from engine.samples.rewards import AsJudged
from engine.train.algorithm import Gspo
from engine.train.routing_replay import RoutingReplay
from engine.train.torch_trainer import TorchTrainer

VOCABULARY, LAYERS, EXPERTS, TOP_K = 96, 2, 4, 2


def write_moe(folder: Path, *, dtype: str = "float32", normalise: bool = True) -> ModelInfo:
    """A random Qwen3-MoE whose router is sharp enough that routing matters."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        moe_intermediate_size=32,
        norm_topk_prob=normalise,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    torch.manual_seed(7)
    transformers.Qwen3MoeForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return ModelInfo(
        name="moe",
        path=folder,
        renderer="qwen3",
        max_context=512,
        num_layers=LAYERS,
        top_k=TOP_K,
        dtype=dtype,
    )


def write_qwen3_5(folder: Path) -> ModelInfo:
    """A random model of the architecture of scale=paper: linear attention, full attention, shared expert."""
    config = transformers.Qwen3_5MoeTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=True,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    torch.manual_seed(7)
    transformers.Qwen3_5MoeForCausalLM(config).save_pretrained(folder)
    return ModelInfo(
        name="qwen3.5",
        path=folder,
        renderer="qwen3.5",
        max_context=512,
        num_layers=LAYERS,
        top_k=TOP_K,
        dtype="float32",
    )


def write_dense(folder: Path) -> ModelInfo:
    """A random GPT-2: nothing in it falls back to float32, so float64 is float64 throughout."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.2
    )
    torch.manual_seed(7)
    transformers.GPT2LMHeadModel(config).to(torch.float64).save_pretrained(folder)
    return ModelInfo(
        name="dense", path=folder, renderer="qwen3", max_context=128, num_layers=0, top_k=0, dtype="float64"
    )


def gspo(**changes: Any) -> Gspo:
    settings: dict[str, Any] = {
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "kl_coefficient": 1e-3,
        "kl_estimator": "low_variance",
        "kl_in_reward": False,
        "aggregation": "seq-mean-token-mean",
        "importance_correction": "off",
        "rewards": AsJudged(),
        "advantage": GroupNormalized(ddof=1, epsilon=1e-6),
    }
    return Gspo(**(settings | changes))


def trainer(**changes: Any) -> TorchTrainer:
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "betas": [0.9, 0.99],
        "weight_decay": 0.0,
        "adam_epsilon": 1e-8,
        "gradient_clip": 1.0,
        "scheduler": "constant",
        "warmup_steps": 0,
        "mini_batches": 1,
        "micro_batch_tokens": 256,
        "micro_batch_rows": 8,
        "gradient_checkpointing": False,
        "experts_implementation": "eager",
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
    }
    return TorchTrainer(**(settings | changes))


def started(model: ModelInfo, *, replay: bool, algorithm: Gspo | None = None, **changes: Any) -> TorchTrainer:
    made = trainer(**changes)
    made.start(model, algorithm or gspo(), RoutingReplay(enabled=replay), 0)
    return made


def experts(rng: np.random.Generator, tokens: int) -> Any:
    """Random, valid, distinct experts: uint8 [tokens - 1, layers, top_k]."""
    order = rng.permuted(np.tile(np.arange(EXPERTS), (tokens - 1, LAYERS, 1)), axis=-1)
    return order[..., :TOP_K].astype(np.uint8)


def row(trajectory: int, advantage: float, tokens: int, *, routed: bool, targets: Sequence[int] = ()) -> Row:
    """A random row; the same arguments give the same row. Without `targets` its last third is sampled."""
    rng = np.random.default_rng((trajectory, tokens))
    target = np.zeros(tokens, np.bool_)
    target[list(targets) if targets else range(tokens - tokens // 3, tokens)] = True
    return Row(
        trajectory=trajectory,
        token_ids=rng.integers(0, VOCABULARY, tokens).astype(np.int32),
        target=target,
        captured_logprobs=np.where(target, -1.0, 0.0).astype(np.float32),
        policy_versions=np.where(target, 0, -1).astype(np.int32),
        routed_experts=experts(rng, tokens) if routed else None,
        advantage=advantage,
    )


def batch(rows: Sequence[Row], *, step: int = 0, temperature: float = 1.0) -> Batch:
    return Batch(
        step=step,
        policy_version=step,
        rows=tuple(rows),
        trajectories=1 + max(r.trajectory for r in rows),
        temperature=temperature,
    )


def gradients(made: TorchTrainer, of: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gradient that a step hands to its optimiser (before clipping), and the step's metrics."""
    optimizer = made._optimizer
    assert optimizer is not None
    kept: dict[str, Any] = {}
    original = optimizer.step

    def recording(where: str) -> dict[str, float]:
        kept.update({name: tensor.grad.clone() for name, tensor in optimizer.master.items()})
        return original(where)

    optimizer.step = recording  # type: ignore[method-assign]
    metrics = dict(made.step(of))
    return kept, metrics


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def pair(step: int = 0, *, routed: bool = True, temperature: float = 1.0):
    rows = [row(0, 1.0, 30, routed=routed), row(1, -1.0, 24, routed=routed), row(2, 0.0, 41, routed=routed)]
    return batch(rows, step=step, temperature=temperature)
