"""Hand-made trajectories for the tests of samples."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.core.records import (
    Exchange,
    ImageSpec,
    Scored,
    Segment,
    Task,
    Termination,
    Trajectory,
    Trial,
    TrialKey,
    Verdict,
)

LAYERS, TOP_K = 2, 2


def task(name: str) -> Task:
    return Task(
        id=name,
        directory=Path("tasks") / name,
        instruction="mend it",
        split="train",
        fingerprint="0" * 64,
        image=ImageSpec(name="base", suite="bookworm", packages=(), pip=()),
        workdir="/testbed",
        repository=Path("repository"),
        tests=Path("tests"),
        test_paths=("tests",),
        python_path=(".",),
        fail_to_pass=("tests/test_a.py::test_a",),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=60.0,
        grade_timeout_s=60.0,
        memory_mb=512,
        cpus=1.0,
    )


def trial(name: str = "t", sample: int = 0, *, epoch: int = 0, attempt: int = 0, temperature: float = 1.0) -> Trial:
    return Trial(
        key=TrialKey(run="r", epoch=epoch, task=name, sample=sample, attempt=attempt),
        task=task(name),
        harness="openhands",
        policy_version=3,
        seed=0,
        temperature=temperature,
        top_p=1.0,
        split="train",
    )


def exchange(
    name: str,
    parent: Exchange | None,
    prompt: Sequence[int],
    sampled: Sequence[int],
    *,
    kind: str = "policy",
    version: int = 3,
) -> Exchange:
    """Log-probabilities are -0.5 - id / 100, so that a shifted one shows."""
    before = 0 if parent is None else parent.prompt_length + len(parent.sampled_ids)
    return Exchange(
        id=name,
        parent=None if parent is None else parent.id,
        kind=kind,
        protocol="openai_chat",
        request="{}",
        response="{}",
        prompt_ids=np.array(prompt, np.int32),
        prompt_length=before + len(prompt),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.array([-0.5 - i / 100 for i in sampled], np.float32),
        policy_versions=np.full(len(sampled), version, np.int32),
        routed_experts=None,
        routed_start=0,
        finish_reason="stop",
        error="",
        started_s=0.0,
        queued_s=0.0,
        generate_s=0.0,
        cached_tokens=0,
    )


def segment(path: Sequence[Exchange], context: Sequence[str] = ()) -> Segment:
    """The path's stream; the sampled tokens of the exchanges named in `context` are context."""
    ids, target, logprobs, versions = [], [], [], []
    for x in path:
        trained = x.kind == "policy" and x.id not in context
        n, m = len(x.prompt_ids), len(x.sampled_ids)
        ids += [x.prompt_ids, x.sampled_ids]
        target += [np.zeros(n, np.bool_), np.full(m, trained)]
        logprobs += [np.zeros(n, np.float32), x.logprobs if trained else np.zeros(m, np.float32)]
        versions += [np.full(n, -1, np.int32), x.policy_versions if trained else np.full(m, -1, np.int32)]
    token_ids = np.concatenate(ids)
    return Segment(
        exchanges=tuple(x.id for x in path),
        token_ids=token_ids,
        target=np.concatenate(target),
        logprobs=np.concatenate(logprobs),
        policy_versions=np.concatenate(versions),
        routed_experts=np.zeros((len(token_ids) - 1, LAYERS, TOP_K), np.uint8),
    )


def branching(of: Trial, termination: Termination = Termination.AGENT_COMPLETED) -> Trajectory:
    """Two turns, a lost turn, a side call, a second branch from the first turn, and a fresh root (compaction)."""
    x0 = exchange("x0", None, [1, 2, 3], [10, 11, 12])
    side = exchange("x1", None, [1, 4], [40, 41], kind="side")
    lost = exchange("x2", x0, [5], [20, 29], kind="discarded")
    x3 = exchange("x3", x0, [5], [20, 21])
    x4 = exchange("x4", x0, [6, 7], [22])
    x5 = exchange("x5", None, [1, 2, 8], [50, 51, 52, 53], version=2)
    return Trajectory(
        trial=of,
        exchanges=(x0, side, lost, x3, x4, x5),
        segments=(segment([x0, x3]), segment([x0, x4], context=["x0"]), segment([x5])),
        termination=termination,
        reason="",
        timings={},
        patch=None,
        findings=(),
    )


def scored(
    reward: float | None,
    name: str = "t",
    sample: int = 0,
    *,
    termination: Termination = Termination.AGENT_COMPLETED,
    epoch: int = 0,
    attempt: int = 0,
    temperature: float = 1.0,
) -> Scored:
    of = trial(name, sample, epoch=epoch, attempt=attempt, temperature=temperature)
    verdict = (
        None
        if reward is None
        else Verdict(reward=reward, resolved=reward == 1.0, tests=(), evidence="", findings=(), grade_s=0.1)
    )
    return Scored(trajectory=branching(of, termination), verdict=verdict)


def silent(item: Scored) -> Scored:
    """The same trial without a single exchange."""
    return dataclasses.replace(item, trajectory=dataclasses.replace(item.trajectory, exchanges=(), segments=()))
