"""Trained tokens are the sampled tokens: proof by position; and how far two log-probabilities of a token differ.

Invariant: the expected stream of each row is rebuilt from the captured exchanges alone, so a row that passes holds the
engine's raw ids, with log-probabilities and versions bit for bit, each sampled token as target exactly once.
Refuses (AlignmentError, naming the trial): every other row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError
from engine.core.records import Batch, Exchange, Group, Row, Segment, Trajectory

Array = NDArray[np.generic]


# ---------------------------------------------------------------- identity of tokens


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens that the policy sampled for kept trajectories, and tokens that are trained; equal once checked."""

    sampled: int
    trained: int


def check_batch(groups: Sequence[Group], batch: Batch) -> TokenCounts:
    """Check every kept trajectory of `groups` against its rows of `batch`. Raises AlignmentError."""
    by_trajectory: dict[int, list[Row]] = {}
    for row in batch.rows:
        by_trajectory.setdefault(row.trajectory, []).append(row)
    kept = [scored.trajectory for group in groups for scored in group.kept]
    if len(kept) != batch.trajectories:
        raise AlignmentError(f"batch {batch.step} counts {batch.trajectories} trajectories; {len(kept)} were kept")
    counts = [check_trajectory(trajectory, by_trajectory.pop(i, [])) for i, trajectory in enumerate(kept)]
    if by_trajectory:
        raise AlignmentError(f"batch {batch.step} has rows of unknown trajectories {sorted(by_trajectory)}")
    return TokenCounts(sampled=sum(c.sampled for c in counts), trained=sum(c.trained for c in counts))


def check_trajectory(trajectory: Trajectory, rows: Sequence[Row]) -> TokenCounts:
    """Check the rows of one trajectory, one per segment in order. Raises AlignmentError."""
    key = trajectory.trial.key
    if len(rows) != len(trajectory.segments):
        raise AlignmentError(f"trial {key}: {len(rows)} rows for {len(trajectory.segments)} segments")
    exchanges = {exchange.id: exchange for exchange in trajectory.exchanges}
    trained: set[str] = set()
    for number, (segment, row) in enumerate(zip(trajectory.segments, rows, strict=True)):
        _check_row(f"trial {key}, segment {number}", _expected(segment, exchanges, trained, str(key)), row)
    policy = [exchange for exchange in trajectory.exchanges if exchange.kind == "policy"]
    lost = [exchange.id for exchange in policy if len(exchange.sampled_ids) and exchange.id not in trained]
    if lost:
        raise AlignmentError(f"trial {key}: sampled tokens of exchanges {', '.join(lost)} are in no segment")
    return TokenCounts(
        sampled=sum(len(exchange.sampled_ids) for exchange in policy),
        trained=sum(int(row.target.sum()) for row in rows),
    )


@dataclass(frozen=True, kw_only=True)
class _Expected:
    token_ids: Array
    target: Array
    logprobs: Array
    policy_versions: Array


def _expected(segment: Segment, exchanges: Mapping[str, Exchange], trained: set[str], key: str) -> _Expected:
    """The segment's streams as its exchanges tell them; adds the ids that become targets to `trained`."""
    pieces: list[tuple[Array, bool, Array, Array]] = []
    length = 0
    parent: str | None = None
    for name in segment.exchanges:
        exchange = exchanges.get(name)
        if exchange is None:
            raise AlignmentError(f"trial {key}: a segment names exchange {name!r}, which was not captured")
        if exchange.parent != parent:
            raise AlignmentError(f"trial {key}: exchange {name} has parent {exchange.parent}, its segment has {parent}")
        length += len(exchange.prompt_ids)
        if exchange.prompt_length != length:
            raise AlignmentError(f"trial {key}: exchange {name} has a prompt of {exchange.prompt_length}, not {length}")
        sampled = len(exchange.sampled_ids)
        if not sampled == len(exchange.logprobs) == len(exchange.policy_versions):
            raise AlignmentError(
                f"trial {key}: exchange {name} has {sampled} sampled ids, {len(exchange.logprobs)} log-probabilities, "
                f"{len(exchange.policy_versions)} versions"
            )
        context = len(exchange.prompt_ids)
        pieces.append(
            (exchange.prompt_ids, False, np.zeros(context, np.float32), np.full(context, -1, np.int32)),
        )
        first = exchange.kind == "policy" and name not in trained
        if first:
            trained.add(name)
            pieces.append((exchange.sampled_ids, True, exchange.logprobs, exchange.policy_versions))
        else:
            none = np.full(sampled, -1, np.int32)
            pieces.append((exchange.sampled_ids, False, np.zeros(sampled, np.float32), none))
        length += sampled
        parent = name
    if not pieces:
        raise AlignmentError(f"trial {key}: a segment names no exchange")
    return _Expected(
        token_ids=np.concatenate([ids for ids, _, _, _ in pieces]),
        target=np.concatenate([np.full(len(ids), is_target) for ids, is_target, _, _ in pieces]),
        logprobs=np.concatenate([logprobs for _, _, logprobs, _ in pieces]),
        policy_versions=np.concatenate([versions for _, _, _, versions in pieces]),
    )


def _check_row(where: str, expected: _Expected, row: Row) -> None:
    streams = (
        ("token ids", expected.token_ids, row.token_ids),
        ("targets", expected.target, row.target),
        ("captured log-probabilities", expected.logprobs, row.captured_logprobs),
        ("policy versions", expected.policy_versions, row.policy_versions),
    )
    for name, due, found in streams:
        if len(due) != len(found):
            raise AlignmentError(f"{where}: {len(found)} {name} in the row, {len(due)} captured")
        different = np.flatnonzero(due != found)
        if len(different):
            at = int(different[0])
            raise AlignmentError(
                f"{where}: {name} differ at {len(different)} positions, first at {at}: "
                f"row {found[at]!r}, captured {due[at]!r}"
            )


# ---------------------------------------------------------------- agreement of log-probabilities


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """How far captured and recomputed log-probabilities of the same sampled tokens differ."""

    tokens: int
    pearson_r: float
    """Over token probabilities; NaN when it is undefined (fewer than two tokens, or no variance)."""
    kl: float
    """k3 estimate of KL(captured ‖ recomputed) in nats per token; 0 without tokens."""
    max_abs_dlogp: float
    """Largest |recomputed - captured|; 0 without tokens."""
    mean_abs_dlogp: float
    trajectory_abs_dlogp: Mapping[int, float]
    """Trajectory index → |mean of (recomputed - captured)| over its tokens."""


def compare_batch(batch: Batch, recomputed: Sequence[NDArray[np.float32]]) -> tuple[Agreement, Agreement]:
    """Captured against recomputed log-probabilities: (tokens of the trainer's version, stale tokens).

    Args:
        batch: as it was trained; both log-probabilities are at `batch.temperature`.
        recomputed: per row float32 [n], as `Trainer.step` returns it under `old_logprobs`.

    Raises AlignmentError when the two do not fit.
    """
    if len(recomputed) != len(batch.rows):
        raise AlignmentError(f"batch {batch.step}: {len(recomputed)} recomputed rows for {len(batch.rows)} rows")
    captured: list[Array] = []
    again: list[Array] = []
    versions: list[Array] = []
    trajectory: list[Array] = []
    for number, (row, values) in enumerate(zip(batch.rows, recomputed, strict=True)):
        if len(values) != len(row.target):
            raise AlignmentError(
                f"batch {batch.step}, row {number}: {len(values)} recomputed values for {len(row.target)} tokens"
            )
        captured.append(row.captured_logprobs[row.target])
        again.append(values[row.target])
        versions.append(row.policy_versions[row.target])
        trajectory.append(np.full(int(row.target.sum()), row.trajectory))
    all_captured = np.concatenate(captured).astype(np.float64)
    all_again = np.concatenate(again).astype(np.float64)
    all_trajectory = np.concatenate(trajectory).astype(np.int64)
    fresh = np.concatenate(versions) == batch.policy_version
    return (
        compare(all_captured[fresh], all_again[fresh], all_trajectory[fresh]),
        compare(all_captured[~fresh], all_again[~fresh], all_trajectory[~fresh]),
    )


def compare(captured: NDArray[np.float64], recomputed: NDArray[np.float64], trajectory: NDArray[np.int64]) -> Agreement:
    """Statistics over sampled tokens, all three arguments [tokens]."""
    if not len(captured) == len(recomputed) == len(trajectory):
        raise AlignmentError(
            f"{len(captured)} captured, {len(recomputed)} recomputed log-probabilities, {len(trajectory)} indices"
        )
    difference = recomputed - captured
    tokens = len(difference)
    per_trajectory = {int(index): float(abs(difference[trajectory == index].mean())) for index in np.unique(trajectory)}
    return Agreement(
        tokens=tokens,
        pearson_r=pearson(np.exp(captured), np.exp(recomputed)),
        kl=float((np.exp(difference) - 1.0 - difference).mean()) if tokens else 0.0,
        max_abs_dlogp=float(np.abs(difference).max()) if tokens else 0.0,
        mean_abs_dlogp=float(np.abs(difference).mean()) if tokens else 0.0,
        trajectory_abs_dlogp=per_trajectory,
    )


def pearson(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Pearson's r in [-1, 1]; NaN when it is undefined (fewer than two values, or one side is constant)."""
    if len(a) < 2:
        return float("nan")
    da, db = a - a.mean(), b - b.mean()
    scale = float(np.sqrt(np.dot(da, da)) * np.sqrt(np.dot(db, db)))
    if scale == 0.0:
        return float("nan")
    return float(np.clip(np.dot(da, db) / scale, -1.0, 1.0))
