"""Supervised fine-tuning on demonstrations: the warm start of a policy. Torch and transformers.

    plan → per update: rename → collate → forward → weighted cross-entropy → clip → AdamW (warm-up, cosine)

Invariant: the same folder, rows, settings and seed give the same weights to the bit on the same machine. The weights on
disk are the old ones or the new ones, never half of either.
Refuses: rows that do not fit the model, nothing to learn, a loss or gradient that is not finite.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from engine.core.contracts import Say
from engine.core.errors import AlignmentError, NoTrainableToken, RunError
from engine.core.records import Demonstration
from engine.train.checkpoint import export_weights

_SAY_EVERY_S = 5.0
_EVALUATION_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How demonstrations are learnt; see `engine.train.warm_start.SupervisedFit`."""

    prompt_weight: float
    learning_rate: float
    final_rate: float
    embedding_rate: float
    betas: tuple[float, float]
    adam_epsilon: float
    weight_decay: float
    gradient_clip: float
    warmup_steps: int
    epochs: int
    batch_tokens: int
    first_answer: float
    rename: float
    rename_below: float
    balance: float
    experts: str
    threads: int


@dataclass(frozen=True, kw_only=True)
class _Padded:
    """Rows that go through the model together, padded on the right, where a causal model does not see it."""

    token_ids: Any
    """int64 [rows, width]."""
    predicting: Any
    """int64 [targets]: flat index of the position that predicts each target."""
    targets: Any
    """int64 [targets]."""
    weights: Any
    """float32 [targets]."""
    sampled: Any
    """bool [targets]."""
    present: Any
    """int64 [rows, width]: 0 at padding."""


def fit(folder: Path, rows: Sequence[Demonstration], settings: FitSettings, seed: int, say: Say) -> dict[str, float]:
    """Train the checkpoint in `folder` in place.

    Returns the last loss, updates, tokens (as trained, padding left out), seconds, and `evaluate` after the fit.
    Raises AlignmentError, NoTrainableToken, or RunError when training leaves the finite numbers; the folder keeps its
    old weights then."""
    _check(rows, folder)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(seed)
    model = _load(folder, settings.experts)
    random = np.random.default_rng(seed)
    renaming = Renaming(rows, settings, _vocabulary(folder), _control(folder))
    updates = _plan(rows, settings, random)
    optimizer = _optimizer(model, settings)
    began = said = time.monotonic()
    loss, tokens = math.nan, 0
    for number, seen in enumerate(updates):
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * rate(settings, number, len(updates))
        batch = _collate(renaming(seen, random), settings.prompt_weight)
        loss = _update(model, optimizer, batch, settings, f"update {number + 1} of {len(updates)}")
        tokens += int(batch.present.sum())
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            speed = tokens / (said - began)
            say(f"warm start: update {number + 1} of {len(updates)}, loss {loss:.3f}, {speed:,.0f} tokens/s")
    seconds = time.monotonic() - began
    metrics = _evaluate(model, rows)
    export_weights(model, folder / "model.safetensors")
    return {"loss": loss, "updates": float(len(updates)), "tokens": float(tokens), "seconds": seconds, **metrics}


def evaluate(folder: Path, rows: Sequence[Demonstration], experts: str) -> dict[str, float]:
    """Teacher-forced figures, without renaming: `sampled_loss`, `prompt_loss` (nats per token), `sampled_perplexity`,
    `sampled_accuracy` (share of sampled tokens that are the model's first choice). Raises as `fit`."""
    _check(rows, folder)
    return _evaluate(_load(folder, experts), rows)


class Renaming:
    """Swaps the rare tokens of a row for other rare ones, alike throughout the row.

    A line that stands in few demonstrations can be memorised with its place; one that is another token each time can
    only be copied from where the row says it. Every rare token of the vocabulary takes its turn, also those of tasks
    that have no demonstration, so that the model can copy these too.
    """

    def __init__(
        self, rows: Sequence[Demonstration], settings: FitSettings, vocabulary: int, control: Sequence[int]
    ) -> None:
        self._share = settings.rename
        holding = np.zeros(vocabulary, np.int64)
        for row in rows:
            holding[np.unique(row.token_ids)] += 1
        rare = holding <= settings.rename_below * len(rows)
        rare[list(control)] = False
        self.rare: NDArray[np.int64] = np.flatnonzero(rare)
        """int64 [n]: ids that take part."""
        self._identity = np.arange(vocabulary)

    def __call__(self, rows: Sequence[Demonstration], random: np.random.Generator) -> list[Demonstration]:
        """The rows of one update; those that answer the same prompt get the same names, so that their loss is that of
        all their answers, not now of this one and then of that."""
        chosen: dict[bytes, NDArray[np.int64] | None] = {}
        result = []
        for row in rows:
            key = prompt(row)
            if key not in chosen:
                chosen[key] = self._draw(random)
            names = chosen[key]
            ids = row.token_ids if names is None else names[row.token_ids].astype(np.int32)
            result.append(Demonstration(token_ids=ids, sampled=row.sampled))
        return result

    def _draw(self, random: np.random.Generator) -> NDArray[np.int64] | None:
        if not len(self.rare) or random.random() >= self._share:
            return None
        names = self._identity.copy()
        names[self.rare] = random.permutation(self.rare)
        return names


def prompt(row: Demonstration) -> bytes:
    """What the first answer answers, as a key."""
    return row.token_ids[: int(np.argmax(row.sampled))].tobytes()


def rate(settings: FitSettings, update: int, updates: int) -> float:
    """Learning rate of update `update` (from 0): a linear warm-up above 0, then half a cosine to `final_rate` of it."""
    if update < settings.warmup_steps:
        return settings.learning_rate * (update + 1) / settings.warmup_steps
    progress = (update - settings.warmup_steps) / max(1, updates - settings.warmup_steps)
    floor = settings.final_rate
    return settings.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def _update(model: Any, optimizer: Any, batch: _Padded, settings: FitSettings, where: str) -> float:
    optimizer.zero_grad(set_to_none=True)
    logits, routing = _logits(model, batch, routing=settings.balance > 0)
    losses = functional.cross_entropy(logits, batch.targets, reduction="none")
    loss = (losses * batch.weights).sum() / batch.weights.sum()
    whole = loss
    if routing is not None:
        from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

        config = model.config
        whole = loss + settings.balance * load_balancing_loss_func(
            routing, config.num_experts, config.num_experts_per_tok, batch.present
        )
    whole.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip))
    value = float(whole.detach())
    if not (math.isfinite(value) and math.isfinite(norm)):
        raise RunError(f"warm start: {where}: loss {value}, gradient norm {norm}; lower model.sft.learning_rate")
    optimizer.step()
    return float(loss.detach())


def _logits(model: Any, batch: _Padded, *, routing: bool) -> tuple[Any, Any]:
    """[targets, vocabulary], and the routers' logits where asked."""
    output = model.get_decoder()(input_ids=batch.token_ids, use_cache=False, output_router_logits=routing)
    hidden = output.last_hidden_state
    chosen = hidden.reshape(-1, hidden.shape[-1])[batch.predicting]
    return model.get_output_embeddings()(chosen), output.router_logits if routing else None


def _evaluate(model: Any, rows: Sequence[Demonstration]) -> dict[str, float]:
    losses, hits, sampled = [], [], []
    with torch.no_grad():
        for indices in _groups(rows, range(len(rows)), _EVALUATION_TOKENS):
            batch = _collate([rows[index] for index in indices], 1.0)
            logits, _ = _logits(model, batch, routing=False)
            losses.append(functional.cross_entropy(logits, batch.targets, reduction="none").double())
            hits.append(logits.argmax(-1) == batch.targets)
            sampled.append(batch.sampled)
    loss, hit, ours = torch.cat(losses), torch.cat(hits), torch.cat(sampled)
    mean = float(loss[ours].mean())
    return {
        "sampled_loss": mean,
        "sampled_perplexity": math.exp(min(mean, 700.0)),
        "sampled_accuracy": float(hit[ours].double().mean()),
        "prompt_loss": float(loss[~ours].mean()) if bool((~ours).any()) else 0.0,
    }


def _optimizer(model: Any, settings: FitSettings) -> Any:
    """AdamW over three groups; `share` is each one's share of the learning rate."""
    embedding = model.get_input_embeddings().weight
    others = [parameter for parameter in model.parameters() if parameter is not embedding]
    decay = settings.weight_decay
    groups = [
        {"params": [embedding], "weight_decay": decay, "share": settings.embedding_rate},
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": decay, "share": 1.0},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0, "share": 1.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.adam_epsilon)


def _plan(
    rows: Sequence[Demonstration], settings: FitSettings, random: np.random.Generator
) -> list[tuple[Demonstration, ...]]:
    """Rows of each update; every epoch holds each row once, in another order, those of one prompt side by side, whole
    or up to the first answer."""
    families: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        families.setdefault(prompt(row), []).append(index)
    members = list(families.values())
    updates: list[tuple[Demonstration, ...]] = []
    for _ in range(settings.epochs):
        seen = list(rows)
        order = []
        for place in random.permutation(len(members)):
            short = random.random() < settings.first_answer
            for index in members[place]:
                seen[index] = first_answer(rows[index]) if short else rows[index]
                order.append(index)
        groups = list(_groups(seen, order, settings.batch_tokens))
        updates += [tuple(seen[index] for index in groups[place]) for place in random.permutation(len(groups))]
    return updates


def first_answer(row: Demonstration) -> Demonstration:
    """The row up to the end of its first run of sampled tokens."""
    begin = int(np.argmax(row.sampled))
    after = np.flatnonzero(~row.sampled[begin:])
    end = begin + int(after[0]) if len(after) else len(row.token_ids)
    return Demonstration(token_ids=row.token_ids[:end], sampled=row.sampled[:end])


def _groups(rows: Sequence[Demonstration], order: Sequence[int], tokens: int) -> Iterator[tuple[int, ...]]:
    """Rows of like length together, at most `tokens` with padding; within a length the given order holds."""
    current: list[int] = []
    for index in sorted(order, key=lambda index: len(rows[index].token_ids)):
        if current and (len(current) + 1) * len(rows[index].token_ids) > tokens:
            yield tuple(current)
            current = []
        current.append(index)
    if current:
        yield tuple(current)


def _collate(rows: Sequence[Demonstration], prompt_weight: float) -> _Padded:
    width = max(len(row.token_ids) for row in rows) - 1
    token_ids = np.zeros((len(rows), width), np.int64)
    present = np.zeros((len(rows), width), np.int64)
    predicting, targets, weights, sampled = [], [], [], []
    for line, row in enumerate(rows):
        size = len(row.token_ids) - 1
        token_ids[line, :size] = row.token_ids[:-1]
        present[line, :size] = 1
        weight = np.where(row.sampled[1:], 1.0, prompt_weight).astype(np.float32)
        chosen = np.flatnonzero(weight)
        predicting.append(line * width + chosen)
        targets.append(row.token_ids[1:][chosen].astype(np.int64))
        weights.append(weight[chosen])
        sampled.append(row.sampled[1:][chosen])
    return _Padded(
        token_ids=torch.from_numpy(token_ids),
        predicting=torch.from_numpy(np.concatenate(predicting)),
        targets=torch.from_numpy(np.concatenate(targets)),
        weights=torch.from_numpy(np.concatenate(weights)),
        sampled=torch.from_numpy(np.concatenate(sampled)),
        present=torch.from_numpy(present),
    )


def _check(rows: Sequence[Demonstration], folder: Path) -> None:
    vocabulary = _vocabulary(folder)
    for number, row in enumerate(rows):
        at = f"demonstration {number}"
        if len(row.sampled) != len(row.token_ids):
            raise AlignmentError(f"{at}: {len(row.sampled)} flags for {len(row.token_ids)} tokens")
        if len(row.token_ids) < 2 or row.sampled[0]:
            raise AlignmentError(f"{at}: nothing precedes its first sampled token")
        low, high = int(row.token_ids.min()), int(row.token_ids.max())
        if low < 0 or high >= vocabulary:
            raise AlignmentError(f"{at}: token ids {low} to {high}; the model has {vocabulary}")
        if not row.sampled.any():
            raise NoTrainableToken(f"{at}: none of {len(row.token_ids)} tokens was sampled")
    if not rows:
        raise NoTrainableToken("the warm start has no demonstration; raise model.demonstrations.samples_per_task")


def _vocabulary(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text("utf-8"))["vocab_size"])


def _control(folder: Path) -> list[int]:
    """Ids of the control tokens, which mean the same in every row."""
    return [
        int(token)
        for token in json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["added_tokens_decoder"]
    ]


def _load(folder: Path, experts: str) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="sdpa",
        experts_implementation=experts,
        local_files_only=True,
    )
    return model.train()
