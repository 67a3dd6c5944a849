"""Tensors and sizes of a GGUF file of the architecture `llama` → config.json and model.safetensors. gguf, torch.

Invariant: every tensor of the file goes into exactly one tensor of the checkpoint, and the checkpoint has all that its
configuration needs; values are those that the quantised blocks stand for, rounded once to the wanted number format.
Refuses other architectures, tensors that it does not know or that are missing, and shapes that do not fit.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import RunError
from engine.train.gguf.fields import Fields, field

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Name of a tensor within a GGUF layer → its name within a Hugging Face layer."""
_NOT_CONVERTED = ("llama.expert_count", "llama.rope.scaling.type")
"""What makes a Llama another model than the plain one."""


def llama_config(fields: Fields, dtype: str, tied: bool) -> dict[str, Any]:
    """config.json for transformers and vLLM. Raises RunError when the file is of another architecture."""
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise RunError(f"the GGUF file is of the architecture {architecture!r}; only `llama` is converted")
    for key in _NOT_CONVERTED:
        if key in fields:
            raise RunError(f"the GGUF file has {key}={fields[key]!r}, which is not converted")
    hidden, heads = field(fields, "llama.embedding_length"), field(fields, "llama.attention.head_count")
    head_dim = fields.get("llama.attention.key_length", hidden // heads)
    if (rotated := fields.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise RunError(f"the GGUF file rotates {rotated} of {head_dim} dimensions of a head; only all are converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": dtype,
        "vocab_size": len(field(fields, "tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": field(fields, "llama.feed_forward_length"),
        "num_hidden_layers": field(fields, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": field(fields, "llama.context_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(field(fields, "llama.rope.freq_base"))},
        "rms_norm_eps": _shortest(field(fields, "llama.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(fields, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def tensor_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name in the GGUF file, name in the checkpoint and shape of each tensor that the configuration needs."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    yield "token_embd.weight", "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", f"model.layers.{layer}.{_LAYER[name]}.weight", shape
    yield "output_norm.weight", "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "output.weight", "lm_head.weight", (config["vocab_size"], hidden)


def write_checkpoint(folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Write config.json, generation_config.json and model.safetensors; returns the number of parameters.

    `tensors`: `gguf.ReaderTensor` by name; `config`: as `llama_config` gives it. Raises RunError."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    wanted = list(tensor_shapes(config))
    _check_names(set(tensors), {source for source, _, _ in wanted})
    made, dtype = {}, getattr(torch, config["dtype"])
    for source, name, shape in wanted:
        tensor = tensors[source]
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if values.shape != shape:
            raise RunError(f"the GGUF file's {source} has shape {values.shape} where its sizes need {shape}")
        untwist = _untwist(source, config)
        made[name] = torch.from_numpy(untwist(values) if untwist else values).to(dtype).contiguous()
    save_file(made, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write(folder / "config.json", config)
    special = {name: config[name] for name in ("eos_token_id", "pad_token_id") if config[name] is not None}
    _write(folder / "generation_config.json", special)
    return sum(tensor.numel() for tensor in made.values())


def _untwist(source: str, config: Mapping[str, Any]) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
    """Undo how the rows of query and key projections were reordered when the file was made: GGUF rotates neighbouring
    rows of a head together, Hugging Face's Llama rows that are half a head apart."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    number = heads.get(source.split(".")[-2])
    if number is None:
        return None
    return lambda rows: rows.reshape(number, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _check_names(found: set[str], wanted: set[str]) -> None:
    for problem, names in (("lacks", wanted - found), ("holds tensors that nothing is known of:", found - wanted)):
        if names:
            some = ", ".join(sorted(names)[:3])
            raise RunError(f"the GGUF file {problem} {some}{' …' if len(names) > 3 else ''} ({len(names)} in all)")


def _shortest(value: float) -> float:
    """The number that was written: 1e-5, not what float32 makes of it (9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
