"""Groups → the batch of one optimisation step.

Invariant: one row per segment; the segments of a trajectory share its index and its advantage; excluded trajectories
have no row and no place in `Batch.trajectories`.
Refuses: streams whose lengths differ, a target without a finite log-probability or policy version, a token from weights
newer than the trainer's, mixed temperatures, and a batch without any target.

A batch of groups without variance is not refused: its advantages are 0, but the KL still acts on its tokens, and
whether that trains anything is the algorithm's to say.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from engine.core.errors import AlignmentError, NoTrainableToken, RunError
from engine.core.records import Batch, Group, Row, Segment, Termination, TrialKey


def make_batch(groups: Sequence[Group], *, step: int, policy_version: int) -> Batch:
    """Rows in order of group, kept trajectory, segment; so `rows` can be walked along with them.

    Args:
        groups: as `make_groups` returns them.
        step: the optimisation step that this batch is for.
        policy_version: version of the trainer's weights before the update.

    Raises AlignmentError (naming trial and both numbers), RunError, or NoTrainableToken when no row has a target.
    """
    rows: list[Row] = []
    temperatures: set[float] = set()
    trajectory = 0
    for group in groups:
        for scored, advantage in zip(group.kept, group.advantages, strict=True):
            trial = scored.trajectory.trial
            temperatures.add(trial.temperature)
            for number, segment in enumerate(scored.trajectory.segments):
                check_segment(segment, trial.key, number, policy_version)
                rows.append(_row(segment, trajectory, advantage))
            trajectory += 1
    if not any(bool(row.target.any()) for row in rows):
        lost = Counter(one.trajectory.termination.value for group in groups for one in group.excluded)
        why = f" ({', '.join(f'{name} {count}' for name, count in lost.items())})" if lost else ""
        time = Termination.AGENT_TIMEOUT in lost  # never tried again: the task's own limit decides it
        way_out = ", or raise tasks.agent_timeout_s, the agent's wall clock" if time else ""
        raise NoTrainableToken(
            f"step {step}: {trajectory} kept and {lost.total()} excluded trajectories{why} hold no sampled token, so "
            f"nothing can be trained; mend what the run's ledger/step={step}.jsonl names as reasons{way_out}, or the "
            "harness's rule for side calls"
        )
    if len(temperatures) != 1:
        raise RunError(f"step {step}: rollouts at temperatures {sorted(temperatures)}; one batch takes one temperature")
    return Batch(
        step=step,
        policy_version=policy_version,
        rows=tuple(rows),
        trajectories=trajectory,
        temperature=temperatures.pop(),
    )


def _row(segment: Segment, trajectory: int, advantage: float) -> Row:
    return Row(
        trajectory=trajectory,
        token_ids=segment.token_ids,
        target=segment.target,
        captured_logprobs=segment.logprobs,
        policy_versions=segment.policy_versions,
        routed_experts=segment.routed_experts,
        advantage=advantage,
    )


def check_segment(segment: Segment, key: TrialKey, number: int, policy_version: int) -> None:
    """Raise AlignmentError unless the segment's streams fit each other and the trainer's version."""
    where = f"trial {key}, segment {number}"
    tokens = len(segment.token_ids)
    for name in ("target", "logprobs", "policy_versions"):
        length = len(getattr(segment, name))
        if length != tokens:
            raise AlignmentError(f"{where}: {length} rows of {name} for {tokens} tokens")
    routed = segment.routed_experts
    if routed is not None and len(routed) != tokens - 1:
        raise AlignmentError(f"{where}: {len(routed)} rows of routed experts for {tokens} tokens; {tokens - 1} are due")
    target = segment.target
    if not target.any():
        return
    if target[0]:
        raise AlignmentError(f"{where}: position 0 is a target, but nothing precedes it that could have sampled it")
    logprobs = segment.logprobs[target]
    if not bool(np.isfinite(logprobs).all()) or float(logprobs.max()) > _ROUNDING:
        worst = int(np.flatnonzero(target)[int(np.argmax(np.where(np.isfinite(logprobs), logprobs, np.inf)))])
        raise AlignmentError(f"{where}: captured log-probability {segment.logprobs[worst]} at position {worst}")
    versions = segment.policy_versions[target]
    if int(versions.min()) < 0 or int(versions.max()) > policy_version:
        raise AlignmentError(
            f"{where}: sampled by versions {int(versions.min())} to {int(versions.max())}; "
            f"the trainer's weights are version {policy_version}"
        )


_ROUNDING = 1e-4
"""An engine may round log 1 up to a hair above 0."""
