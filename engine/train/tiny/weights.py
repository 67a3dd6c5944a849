"""Random weights of a Qwen3-MoE under Hugging Face names, without torch.

Invariant: the tensors depend on the shape and the seed alone (numpy's PCG64, drawn in the order of names), so the file
has the same bytes on every machine. Norms are one, all else is normal with standard deviation 0.02, embeddings tied.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STD = 0.02

_COPYING = 0.5
"""Scale of the output projection against the value projection that it begins as the transpose of."""
_RESIDUAL = 0.35
"""Scale of the other projections into the residual stream, which several layers add to."""
_SHARPNESS = 4.0
"""Gain of the last norm: embeddings of unit length can then give one token of thousands nearly all probability."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a Qwen3-MoE; every layer is sparse."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    moe_intermediate: int
    vocabulary: int
    max_context: int


def tensor_shapes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor, in the order in which they are drawn."""
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (shape.hidden,)
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            yield f"{prefix}.self_attn.{name}_proj.weight", (heads * shape.head_dim, shape.hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (shape.hidden, shape.heads * shape.head_dim)
        yield f"{prefix}.self_attn.q_norm.weight", (shape.head_dim,)
        yield f"{prefix}.self_attn.k_norm.weight", (shape.head_dim,)
        yield f"{prefix}.post_attention_layernorm.weight", (shape.hidden,)
        yield f"{prefix}.mlp.gate.weight", (shape.experts, shape.hidden)
        for expert in range(shape.experts):
            base = f"{prefix}.mlp.experts.{expert}"
            yield f"{base}.gate_proj.weight", (shape.moe_intermediate, shape.hidden)
            yield f"{base}.up_proj.weight", (shape.moe_intermediate, shape.hidden)
            yield f"{base}.down_proj.weight", (shape.hidden, shape.moe_intermediate)
    yield "model.norm.weight", (shape.hidden,)


def parameters(shape: Shape) -> int:
    """Number of parameters, tied embeddings counted once."""
    return sum(int(np.prod(size)) for _, size in tensor_shapes(shape))


def write_weights(folder: Path, shape: Shape, seed: int) -> None:
    """Write model.safetensors, always in float32: who loads it casts to the dtype that config.json names."""
    random = np.random.default_rng(seed)
    _save(folder, {name: _drawn(name, size, _STD, random) for name, size in tensor_shapes(shape)})


def write_copying_weights(folder: Path, shape: Shape, seed: int) -> None:
    """As `write_weights`, but weights that learn to copy a token within some hundred updates.

    Standard deviation 1 / sqrt(inputs), and each head's output projection begins as the transpose of its value
    projection: what a head attends to, it makes likely, so that only where to look has to be learnt."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, size in tensor_shapes(shape):
        scale = _RESIDUAL if name.endswith("down_proj.weight") else 1.0
        tensors[name] = _drawn(name, size, scale * size[-1] ** -0.5, random)
    tensors["model.norm.weight"] *= np.float32(_SHARPNESS)
    shared = shape.heads // shape.kv_heads
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}.self_attn"
        values = [_orthonormal(part) for part in np.split(tensors[f"{prefix}.v_proj.weight"], shape.kv_heads)]
        tensors[f"{prefix}.v_proj.weight"] = np.concatenate(values)
        heads = [values[head // shared].T for head in range(shape.heads)]
        tensors[f"{prefix}.o_proj.weight"] = np.ascontiguousarray(np.concatenate(heads, axis=1) * np.float32(_COPYING))
    _save(folder, tensors)


def _orthonormal(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Orthonormal rows (or columns, where there are more rows) that span what the matrix does."""
    rows, columns = matrix.shape
    if rows > columns:
        return np.ascontiguousarray(np.linalg.qr(matrix)[0])
    return np.ascontiguousarray(np.linalg.qr(matrix.T)[0].T)


def _drawn(name: str, size: tuple[int, ...], std: float, random: np.random.Generator) -> NDArray[np.float32]:
    if name.endswith("norm.weight"):
        return np.ones(size, np.float32)
    return random.standard_normal(size, dtype=np.float32) * np.float32(std)


def _save(folder: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    from safetensors.numpy import save_file

    save_file(dict(tensors), str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_config(folder: Path, shape: Shape, ids: Mapping[str, int], dtype: str) -> None:
    """Write config.json and generation_config.json; `ids` are those of the control tokens."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": dtype,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.moe_intermediate,
        "moe_intermediate_size": shape.moe_intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.0,
        "output_router_logits": False,
        "max_position_embeddings": shape.max_context,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": _STD,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    generation = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", "utf-8")
