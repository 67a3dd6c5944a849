"""Rows → padded micro-batches, in numpy.

Invariant: a row is cut after the position that predicts its last target (nothing later can influence a target under a
causal model) and padded on the right only, so no mask is needed and no sequence can see another. Every position that is
left has its routing row.
Refuses: rows that contradict each other or the model (lengths, indices, token ids, routing), naming both numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError, NoTrainableToken
from engine.core.records import Batch, Row


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the model expects of a row."""

    vocabulary: int
    layers: int
    """Routed layers; 0 for dense models."""
    top_k: int
    experts: int
    replay: bool
    """Whether rows must carry routed experts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows that go through the model together."""

    rows: tuple[int, ...]
    """Indices within `Batch.rows`; the targets below follow this order."""
    counts: tuple[int, ...]
    """Targets of each row."""
    token_ids: NDArray[np.int64]
    """int64 [rows, width]; right padding is 0."""
    predicting: NDArray[np.int64]
    """int64 [targets]; index into the flattened [rows * width] of the position whose output predicts the target."""
    target_ids: NDArray[np.int64]
    """int64 [targets]."""
    experts: NDArray[Any] | None
    """[rows * width, layers, top_k] as captured; 0 at padding; None: the router chooses."""
    present: NDArray[np.bool_] | None
    """bool [rows * width]; False at padding; None without routing."""


def check_batch(batch: Batch, shape: Shape) -> None:
    """Raise AlignmentError or NoTrainableToken unless every row fits the batch and the model."""
    where = f"step {batch.step}"
    if not batch.temperature > 0.0:
        raise AlignmentError(f"{where}: rollout temperature {batch.temperature}; log-probabilities need one above 0")
    if not any(bool(row.target.any()) for row in batch.rows):
        raise NoTrainableToken(f"{where}: none of {len(batch.rows)} rows holds a target")
    advantages: dict[int, float] = {}
    for number, row in enumerate(batch.rows):
        at = f"{where}, row {number}"
        if not 0 <= row.trajectory < batch.trajectories:
            raise AlignmentError(f"{at}: trajectory {row.trajectory} of {batch.trajectories}")
        if not np.isfinite(row.advantage):
            raise AlignmentError(f"{at}: advantage {row.advantage} is not finite")
        if advantages.setdefault(row.trajectory, row.advantage) != row.advantage:
            raise AlignmentError(
                f"{at}: advantage {row.advantage}, but trajectory {row.trajectory} has {advantages[row.trajectory]}"
            )
        _check_row(row, shape, at)


def _check_row(row: Row, shape: Shape, at: str) -> None:
    tokens = len(row.token_ids)
    if len(row.target) != tokens:
        raise AlignmentError(f"{at}: {len(row.target)} target flags for {tokens} tokens")
    if not tokens:
        return
    if row.target[0]:
        raise AlignmentError(f"{at}: position 0 is a target, but nothing precedes it")
    low, high = int(row.token_ids.min()), int(row.token_ids.max())
    if low < 0 or high >= shape.vocabulary:
        raise AlignmentError(f"{at}: token ids {low} to {high}; the model has {shape.vocabulary}")
    if shape.replay:
        _check_routing(row.routed_experts, tokens, shape, at)


def _check_routing(routed: NDArray[Any] | None, tokens: int, shape: Shape, at: str) -> None:
    if shape.layers == 0:
        if routed is not None:
            raise AlignmentError(f"{at}: routed experts {routed.shape} for a dense model")
        return
    if routed is None:
        raise AlignmentError(
            f"{at}: no routed experts, but routing_replay.enabled=true; "
            "let the engine return them or choose routing_replay=none"
        )
    due = (tokens - 1, shape.layers, shape.top_k)
    if routed.shape != due:
        raise AlignmentError(f"{at}: routed experts have shape {routed.shape}, {tokens} tokens need {due}")
    if not routed.size:
        return
    if int(routed.min()) < 0 or int(routed.max()) >= shape.experts:
        raise AlignmentError(
            f"{at}: expert ids {int(routed.min())} to {int(routed.max())}; the model has {shape.experts} experts"
        )
    if shape.top_k > 1:
        ordered = np.sort(routed, axis=-1)
        doubled = np.argwhere((ordered[..., 1:] == ordered[..., :-1]).any(-1))
        if len(doubled):
            position, layer = (int(index) for index in doubled[0])
            raise AlignmentError(
                f"{at}: experts {routed[position, layer].tolist()} at position {position}, layer {layer} repeat; "
                f"{len(doubled)} rows like it were never filled by the engine"
            )


def plan(rows: Sequence[Row], chosen: Sequence[int], *, max_tokens: int, max_rows: int) -> list[tuple[int, ...]]:
    """Indices of rows that go together, longest first.

    A micro-batch holds at most `max_rows` rows and `max_tokens` tokens with padding; a row that is longer than
    `max_tokens` is a micro-batch by itself. Rows without a target are left out.
    """
    lengths = {index: used_length(rows[index]) for index in chosen}
    ordered = sorted((index for index in chosen if lengths[index]), key=lambda index: (-lengths[index], index))
    plans: list[tuple[int, ...]] = []
    current: list[int] = []
    for index in ordered:
        if current and (len(current) == max_rows or (len(current) + 1) * lengths[current[0]] > max_tokens):
            plans.append(tuple(current))
            current = []
        current.append(index)
    if current:
        plans.append(tuple(current))
    return plans


def used_length(row: Row) -> int:
    """Tokens that have to go through the model: those before the last target; 0 when there is no target."""
    targets = np.flatnonzero(row.target)
    return int(targets[-1]) if len(targets) else 0


def collate(rows: Sequence[Row], indices: tuple[int, ...], *, replay: bool) -> MicroBatch:
    """Pad the rows at `indices` into one micro-batch; all have a target and were checked."""
    width = max(used_length(rows[index]) for index in indices)
    token_ids = np.zeros((len(indices), width), np.int64)
    routed = [rows[index].routed_experts for index in indices] if replay else []
    first = routed[0] if routed else None
    experts = None if first is None else np.zeros((len(indices), width, *first.shape[1:]), first.dtype)
    present = None if first is None else np.zeros((len(indices), width), np.bool_)
    predicting, target_ids = [], []
    for line, index in enumerate(indices):
        row = rows[index]
        used = used_length(row)
        token_ids[line, :used] = row.token_ids[:used]
        targets = np.flatnonzero(row.target)
        predicting.append(line * width + targets - 1)
        target_ids.append(row.token_ids[targets])
        if experts is not None and present is not None and row.routed_experts is not None:
            experts[line, :used] = row.routed_experts[:used]
            present[line, :used] = True
    return MicroBatch(
        rows=indices,
        counts=tuple(len(ids) for ids in target_ids),
        token_ids=token_ids,
        predicting=np.concatenate(predicting).astype(np.int64),
        target_ids=np.concatenate(target_ids).astype(np.int64),
        experts=None if experts is None else experts.reshape(-1, *experts.shape[2:]),
        present=None if present is None else present.reshape(-1),
    )
