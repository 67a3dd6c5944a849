"""Records ⇄ plain rows of `schemas/records/trial.json`: one row holds all of a trial but its routed experts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.core.errors import AlignmentError
from engine.core.records import (
    Artifact,
    Exchange,
    FileChange,
    Finding,
    Patch,
    Scored,
    Segment,
    Termination,
    TestResult,
    Trajectory,
    Trial,
    Verdict,
)

Row = dict[str, Any]
Arrays = Mapping[str, Any]


def _finding_row(finding: Finding) -> Row:
    return {**vars(finding), "paths": list(finding.paths)}


def _exchange_row(exchange: Exchange) -> Row:
    plain = (
        "id parent kind protocol request response prompt_length routed_start finish_reason error started_s queued_s "
        "generate_s cached_tokens"
    )
    arrays = "prompt_ids sampled_ids logprobs policy_versions"
    return {name: getattr(exchange, name) for name in plain.split()} | {
        name: np.asarray(getattr(exchange, name)) for name in arrays.split()
    }


def _segment_row(segment: Segment) -> Row:
    arrays = ("token_ids", "target", "logprobs", "policy_versions")
    return {"exchanges": list(segment.exchanges)} | {name: np.asarray(getattr(segment, name)) for name in arrays}


def to_row(scored: Scored) -> Row:
    """One row of the trial table; the routed experts travel apart (`routing_arrays`)."""
    trajectory, verdict = scored.trajectory, scored.verdict
    trial, key, patch = trajectory.trial, trajectory.trial.key, trajectory.patch
    return {
        "run": key.run,
        "epoch": key.epoch,
        "task": key.task,
        "sample": key.sample,
        "attempt": key.attempt,
        "split": trial.split,
        "harness": trial.harness,
        "policy_version": trial.policy_version,
        "seed": trial.seed,
        "temperature": trial.temperature,
        "top_p": trial.top_p,
        "task_fingerprint": trial.task.fingerprint,
        "termination": trajectory.termination.value,
        "excluded": verdict is None,
        "reason": trajectory.reason,
        "reward": None if verdict is None else verdict.reward,
        "resolved": None if verdict is None else verdict.resolved,
        "evidence": "" if verdict is None else verdict.evidence,
        "grade_s": 0.0 if verdict is None else verdict.grade_s,
        "tests": [] if verdict is None else [vars(test) for test in verdict.tests],
        "timings": list(trajectory.timings.items()),
        "diff": None if patch is None else patch.diff,
        "changes": [] if patch is None else [vars(change) for change in patch.changes],
        "artifacts": [] if patch is None else [artifact_row(one) for one in patch.artifacts],
        "findings": [_finding_row(finding) for finding in trajectory.findings],
        "verdict_findings": [] if verdict is None else [_finding_row(finding) for finding in verdict.findings],
        "exchanges": [_exchange_row(exchange) for exchange in trajectory.exchanges],
        "segments": [_segment_row(segment) for segment in trajectory.segments],
        "routed": any(segment.routed_experts is not None for segment in trajectory.segments),
    }


def artifact_row(artifact: Artifact) -> Row:
    """Its contents travel apart, by their digest: what several trials made alike is kept once."""
    digest = hashlib.sha256(artifact.contents).hexdigest()
    size = len(artifact.contents)
    return {"path": artifact.path, "digest": digest, "bytes": size, "executable": artifact.executable}


def artifacts_of(rows: Sequence[Row], contents: Callable[[str], bytes]) -> tuple[Artifact, ...]:
    """The inverse; `contents` gives what has a digest."""
    return tuple(
        Artifact(path=row["path"], contents=contents(row["digest"]), executable=row["executable"]) for row in rows
    )


def routing_arrays(scored: Scored) -> dict[str, Any]:
    """`segment<i>` → routed experts [n - 1, layers, top_k] of each segment of an MoE trajectory."""
    return {
        f"segment{index}": segment.routed_experts
        for index, segment in enumerate(scored.trajectory.segments)
        if segment.routed_experts is not None
    }


def _finding(row: Row) -> Finding:
    known = {"acted": True, **row}  # an older run has no such column, and no defence that only observes
    return Finding(**{**known, "paths": tuple(row["paths"])})


def _exchange(row: Row) -> Exchange:
    return Exchange(
        **{
            **row,
            "prompt_ids": np.asarray(row["prompt_ids"], np.int32),
            "sampled_ids": np.asarray(row["sampled_ids"], np.int32),
            "logprobs": np.asarray(row["logprobs"], np.float32),
            "policy_versions": np.asarray(row["policy_versions"], np.int32),
            "routed_experts": None,
        }
    )


def _segment(row: Row, routed: Any) -> Segment:
    token_ids = np.asarray(row["token_ids"], np.int32)
    if routed is not None and len(routed) != len(token_ids) - 1:
        raise AlignmentError(
            f"stored routing has {len(routed)} rows for a segment of {len(token_ids)} tokens; "
            "the blob is damaged: delete the trial's files to sample it again"
        )
    return Segment(
        exchanges=tuple(row["exchanges"]),
        token_ids=token_ids,
        target=np.asarray(row["target"], np.bool_),
        logprobs=np.asarray(row["logprobs"], np.float32),
        policy_versions=np.asarray(row["policy_versions"], np.int32),
        routed_experts=routed,
    )


def from_row(row: Row, trial: Trial, routing: Arrays, artifacts: Sequence[Artifact] = ()) -> Scored:
    """The inverse of `to_row`; exchanges come back without their routed experts, segments with theirs."""
    patch = None
    if row["diff"] is not None:
        changes = tuple(FileChange(**change) for change in row["changes"])
        patch = Patch(changes=changes, diff=row["diff"], artifacts=tuple(artifacts))
    trajectory = Trajectory(
        trial=trial,
        exchanges=tuple(_exchange(exchange) for exchange in row["exchanges"]),
        segments=tuple(
            _segment(segment, routing.get(f"segment{index}")) for index, segment in enumerate(row["segments"])
        ),
        termination=Termination(row["termination"]),
        reason=row["reason"],
        timings=dict(row["timings"]),
        patch=patch,
        findings=tuple(_finding(finding) for finding in row["findings"]),
    )
    if row["excluded"]:
        return Scored(trajectory=trajectory, verdict=None)
    verdict = Verdict(
        reward=row["reward"],
        resolved=row["resolved"],
        tests=tuple(TestResult(**test) for test in row["tests"]),
        evidence=row["evidence"],
        findings=tuple(_finding(finding) for finding in row["verdict_findings"]),
        grade_s=row["grade_s"],
    )
    return Scored(trajectory=trajectory, verdict=verdict)
