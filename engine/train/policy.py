"""A causal language model that gives log-probabilities of sampled tokens. Torch and transformers.

Invariant: a token's log-probability depends on its own row alone, not on its micro-batch; logits exist only at targets
and only a chunk at a time.
Refuses: a device that is absent, a model whose logits are not its output embedding of its last hidden state.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from engine.core.errors import ConfigError, RunError
from engine.core.specs import ModelInfo
from engine.train.microbatches import MicroBatch, Shape
from engine.train.router import RouterReplay

_CHUNK_ELEMENTS = 1 << 25
"""Logits held at once: 128 MiB in float32, whatever the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """How a model is loaded; see `engine.train.torch_trainer.TorchTrainer`."""

    device: str
    dtype: str
    experts: str
    gradient_checkpointing: bool
    replay: bool


class Policy:
    """One copy of the model: the policy, or the frozen reference."""

    def __init__(self, model: ModelInfo, settings: PolicySettings) -> None:
        self._settings = settings
        self.device = _device(settings.device)
        self.model = _load(model, settings).to(self.device)
        self.parameters: dict[str, Any] = dict(self.model.named_parameters())
        self._decoder = self.model.get_decoder()
        self._head = self.model.get_output_embeddings()
        self._router = RouterReplay(self.model, model.num_layers) if settings.replay and model.num_layers else None
        self.shape = Shape(
            vocabulary=int(self._head.weight.shape[0]),
            layers=model.num_layers,
            top_k=model.top_k,
            experts=self._router.num_experts if self._router else 0,
            replay=settings.replay,
        )
        if self._router and self._router.top_k != model.top_k:
            raise RunError(f"{model.name} routes to {self._router.top_k} experts, its ModelInfo says {model.top_k}")
        self._check_head()

    def logprobs(self, batch: MicroBatch, temperature: float, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the targets and, where asked (without gradient), entropies in nats: both [targets].

        With gradients on, the caller encloses the backward pass in `replaying(batch)` too.
        """
        token_ids = torch.from_numpy(batch.token_ids).to(self.device)
        hidden = self._decoder(input_ids=token_ids, use_cache=False).last_hidden_state
        hidden = hidden.reshape(-1, hidden.shape[-1])[torch.from_numpy(batch.predicting).to(self.device)]
        targets = torch.from_numpy(batch.target_ids).to(self.device)
        size = max(1, _CHUNK_ELEMENTS // self.shape.vocabulary)
        logprobs, entropies = [], []
        for start in range(0, len(targets), size):
            part, ids = hidden[start : start + size], targets[start : start + size]
            if torch.is_grad_enabled():
                logprobs.append(checkpoint(self._chunk, part, ids, temperature, use_reentrant=False))
                continue
            logits = self._logits(part, temperature)
            logprobs.append(_pick(logits, ids))
            if entropy:
                entropies.append(_entropy(logits))
        return torch.cat(logprobs), torch.cat(entropies) if entropies else None

    def replaying(self, batch: MicroBatch) -> Any:
        """Context in which the routers replay the micro-batch's experts (if it has them)."""
        if self._router is None or batch.experts is None or batch.present is None:
            return nullcontext()
        experts = torch.from_numpy(batch.experts.astype(np.int16)).to(self.device)
        padded = not bool(batch.present.all())
        return self._router.using(experts, torch.from_numpy(batch.present).to(self.device) if padded else None)

    def _chunk(self, hidden: Tensor, ids: Tensor, temperature: float) -> Tensor:
        return _pick(self._logits(hidden, temperature), ids)

    def _logits(self, hidden: Tensor, temperature: float) -> Tensor:
        """float32 (float64 for a float64 model) [targets, vocabulary]."""
        logits = self._head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if temperature == 1.0 else logits / temperature

    def _check_head(self) -> None:
        """Some models cap or scale their logits after the output embedding: theirs would silently be other ones."""
        ids = torch.arange(2, device=self.device)[None]
        with torch.no_grad():
            whole = self.model(input_ids=ids, use_cache=False).logits[0].float()
            ours = self._logits(self._decoder(input_ids=ids, use_cache=False).last_hidden_state[0], 1.0).float()
        if not torch.allclose(whole, ours, atol=1e-4):
            gap = float((whole - ours).abs().max())
            raise RunError(f"{type(self.model).__name__} changes its logits after the output embedding (by {gap:.3g})")


def _device(name: str) -> Any:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("train.device", name, "torch sees no GPU", "set compute.device=cpu or install a CUDA build")
    return torch.device(name)


def _load(model: ModelInfo, settings: PolicySettings) -> Any:
    """Raises ConfigError for a folder that transformers cannot make a model of."""
    try:
        return _from_folder(model, settings)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _unreadable(model, error) from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):  # memory, or a defect
            raise
        raise _unreadable(model, error) from error


def _unreadable(model: ModelInfo, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:300]
    problem = f"transformers cannot load it ({type(error).__name__}: {reason})"
    way = "point it to a whole checkpoint of a causal language model that this version of transformers knows"
    return ConfigError("model.path", str(model.path), problem, way)


def _from_folder(model: ModelInfo, settings: PolicySettings) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(model.path, local_files_only=True)
    # Log-probabilities must not depend on chance; training mode is needed for gradient checkpointing alone.
    for name in list(vars(config)):
        if name.endswith(("dropout", "_pdrop")):
            setattr(config, name, 0.0)
    options: dict[str, Any] = {"experts_implementation": settings.experts} if model.num_layers else {}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model.path,
        config=config,
        dtype=getattr(torch, settings.dtype),
        attn_implementation="sdpa",
        local_files_only=True,
        **options,
    )
    if settings.gradient_checkpointing:
        loaded.activation_checkpointing_enable()
    loaded.train()
    return loaded


def _pick(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.gather(-1, ids[:, None]).squeeze(-1) - logits.logsumexp(-1)


def _entropy(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)
