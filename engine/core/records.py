"""The records that flow from stage to stage; their order tells the pipeline.

Task → Trial → Exchange → Segment → Trajectory → Verdict → Group → Row → Batch → StepRecord

Frozen and keyword-only: a stage makes new records, it never changes one. Arrays are numpy, named in the docstring
under each field as `dtype [shape]`; `core` itself imports only the standard library.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.core.specs import ImageSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Split = Literal["warm_start", "train", "validation"]
"""warm_start: only for transcripts that a model is first taught on; never rolled out in training."""


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file of a patch, by contents."""

    path: str
    """POSIX path relative to the repository's root."""
    before: bytes | None
    """Contents at the base; None: the file is new."""
    after: bytes | None
    """Contents after; None: the file is deleted."""
    executable: bool = False
    """Whether the new file carries the execute bit."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file beside the repository's text that a task declares as part of its solution."""

    path: str
    """Absolute path in the sandbox, at or below one of `Task.artifacts`."""
    contents: bytes
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What an agent (or a reference) changed, by contents: it applies exactly or not at all."""

    changes: tuple[FileChange, ...]
    diff: str
    """Unified diff of the same changes, for people."""
    artifacts: tuple[Artifact, ...] = ()
    """What the task declares to be carried over beside them, sorted by path."""

    @property
    def empty(self) -> bool:
        """Whether nothing was done."""
        return not self.changes and not self.artifacts

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(change.path for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One problem: a repository with a bug, an issue text, and withheld tests that judge a fix."""

    id: str
    directory: Path
    """The Harbor-format directory on the host."""
    instruction: str
    """What the agent is told (issue text)."""
    split: Split
    fingerprint: str
    """sha256 over all that decides the task: tree, tests, instruction, test ids."""
    image: ImageSpec
    """The root file system that the agent and the grader work in."""
    workdir: str
    """Absolute path of the repository inside the sandbox."""
    repository: Path
    """Host folder: the tree that the agent receives; holds no withheld test."""
    tests: Path
    """Host folder: the grader's version of `test_paths`; never enters the agent's sandbox."""
    test_paths: tuple[str, ...]
    """Repository-relative paths that belong to the grader: wholly replaced before grading."""
    python_path: tuple[str, ...]
    """Repository-relative folders that go on sys.path when tests run (`.`, `src`)."""
    fail_to_pass: tuple[str, ...]
    """pytest node ids that fail on the base and must pass."""
    pass_to_pass: tuple[str, ...]
    """pytest node ids that pass on the base and must still pass."""
    reference: Patch | None
    """The known fix; None where the source has none."""
    agent_timeout_s: float
    grade_timeout_s: float
    memory_mb: int
    cpus: float
    artifacts: tuple[str, ...] = ()
    """Absolute sandbox paths of files or folders that are graded beside the patch."""


# ---------------------------------------------------------------- trials


@dataclass(frozen=True, kw_only=True)
class TrialKey:
    """Names one trial for ever: same key, same trial."""

    run: str
    epoch: int
    task: str
    sample: int
    """Index within the task's group of rollouts, from 0."""
    attempt: int
    """0, then one more for each retry after an infrastructure failure."""

    def __str__(self) -> str:
        return f"e{self.epoch}-{self.task}-s{self.sample}-a{self.attempt}"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One attempt of one harness at one task, as planned."""

    key: TrialKey
    task: Task
    harness: str
    """Key under `harnesses` of the configuration."""
    policy_version: int
    """Version of the weights when the trial starts."""
    seed: int
    """Seed of everything random in the trial; sampling of turn n uses `seed + n`."""
    temperature: float
    top_p: float
    split: Split


class Termination(StrEnum):
    """Why a trial ended. `excluded` ones give no gradient, no KL and no place in a denominator."""

    AGENT_COMPLETED = "agent_completed"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"
    TOKEN_BUDGET = "token_budget"
    NO_PROGRESS = "no_progress"
    AGENT_OOM = "agent_oom"
    AGENT_TIMEOUT = "agent_timeout"
    SETUP_FAILED = "setup_failed"
    SANDBOX_LOST = "sandbox_lost"
    HARNESS_FAILED = "harness_failed"
    ENGINE_ERROR = "engine_error"
    GRADER_FAILED = "grader_failed"

    @property
    def excluded(self) -> bool:
        return self in _EXCLUDED

    @property
    def retryable(self) -> bool:
        """Infrastructure failures are tried again; the agent's own wall clock is not."""
        return self in _EXCLUDED and self is not Termination.AGENT_TIMEOUT


_EXCLUDED = frozenset(
    {
        Termination.AGENT_TIMEOUT,
        Termination.SETUP_FAILED,
        Termination.SANDBOX_LOST,
        Termination.HARNESS_FAILED,
        Termination.ENGINE_ERROR,
        Termination.GRADER_FAILED,
    }
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a defence saw or did."""

    stage: str
    """Name of the defence."""
    phase: str
    """build, setup, agent, extract or grade."""
    detail: str
    """One line for a person: what was seen, the same whether anything was done about it or not."""
    paths: tuple[str, ...] = ()
    acted: bool = False
    """Whether something was done about it (taken out, ended, not rewarded); False: it was only noted."""


# ---------------------------------------------------------------- tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Generation:
    """What the inference engine answered to one prompt; exactly the engine's raw output."""

    token_ids: "NDArray[np.int32]"
    """int32 [sampled]; includes the stop token where one was sampled."""
    logprobs: "NDArray[np.float32]"
    """float32 [sampled]; natural log under the sampling distribution (temperature and top-p applied)."""
    finish_reason: Literal["stop", "length", "abort"]
    policy_versions: "NDArray[np.int32]"
    """int32 [sampled]; version of the weights that sampled each token."""
    routed_experts: "NDArray[Any] | None"
    """uint8|uint16 [prompt + sampled - 1 - routed_start, layers, top_k]; None for dense models."""
    routed_start: int
    """Position of the first routed row within prompt + sampled."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""


ExchangeKind = Literal["policy", "side", "discarded"]


class TextAsNeeded:
    """A text of a record, given as a text or as what makes it: then it is made at each reading and never held."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, record: object | None, owner: type) -> str:
        if record is None:
            raise AttributeError(self._name)  # so that the field has no default
        given: str | Callable[[], str] = vars(record)[self._name]
        return given if isinstance(given, str) else given()

    def __set__(self, record: object, given: str | Callable[[], str]) -> None:
        vars(record)[self._name] = given


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """One LLM call: its parent and only what it adds to the parent's token stream."""

    id: str
    """Unique within the trial: `x0`, `x1`, … in order of arrival."""
    parent: str | None
    """The exchange whose whole stream (prompt and sampled) this one's prompt begins with; None opens a root."""
    kind: ExchangeKind
    """policy: trained; side: recorded only; discarded: a lost turn that was replaced by a retry."""
    protocol: str
    """Wire protocol: `openai_chat`, `openai_responses`, `anthropic`."""
    request: TextAsNeeded = TextAsNeeded()
    """str: the request body as it came (JSON text)."""
    response: str
    """The response body that was sent (JSON text); empty when it failed."""
    prompt_ids: "NDArray[np.int32]"
    """int32 [new]; prompt ids beyond the parent's stream."""
    prompt_length: int
    """Length of the whole prompt: the parent's stream plus `prompt_ids`."""
    sampled_ids: "NDArray[np.int32]"
    """int32 [sampled]."""
    logprobs: "NDArray[np.float32]"
    """float32 [sampled]."""
    policy_versions: "NDArray[np.int32]"
    """int32 [sampled]."""
    routed_experts: "NDArray[Any] | None"
    """uint8|uint16 [rows, layers, top_k]: rows for positions `routed_start …` of this exchange's stream; None where
    only the segments hold them."""
    routed_start: int
    finish_reason: str
    error: str
    """Empty, or why the call failed (one line)."""
    started_s: float
    """Unix time when the request arrived."""
    queued_s: float
    """Seconds from arrival to the engine's call."""
    generate_s: float
    """Seconds in the engine."""
    cached_tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """One append-only token stream: a root-to-leaf path of the conversation tree."""

    exchanges: tuple[str, ...]
    """Ids of the exchanges along the path."""
    token_ids: "NDArray[np.int32]"
    """int32 [n]."""
    target: "NDArray[np.bool_]"
    """bool [n]; True where the policy sampled the token and this segment is the first that holds it."""
    logprobs: "NDArray[np.float32]"
    """float32 [n]; captured log-probability, 0 where `target` is False."""
    policy_versions: "NDArray[np.int32]"
    """int32 [n]; -1 where `target` is False."""
    routed_experts: "NDArray[Any] | None"
    """uint8|uint16 [n - 1, layers, top_k]: row i is the routing of position i; the last token has no row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """All that one trial left behind, before it is judged."""

    trial: Trial
    exchanges: tuple[Exchange, ...]
    segments: tuple[Segment, ...]
    termination: Termination
    reason: str
    """One line: what the harness or the failure said."""
    timings: Mapping[str, float]
    """Seconds per stage: create, setup, agent, extract, grade, …"""
    patch: Patch | None
    findings: tuple[Finding, ...]

    @property
    def sampled_tokens(self) -> int:
        return sum(int(segment.target.sum()) for segment in self.segments)


# ---------------------------------------------------------------- judgement

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "missing"]


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """One test id of the task and what became of it."""

    __test__ = False

    id: str
    kind: Literal["fail_to_pass", "pass_to_pass"]
    outcome: Outcome
    ok: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A reward and its evidence. There is no verdict where grading itself broke (GraderError)."""

    reward: float
    resolved: bool
    tests: tuple[TestResult, ...]
    evidence: str
    """The last lines of the grader's output, and why the reward is what it is."""
    findings: tuple[Finding, ...]
    grade_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """A trajectory and its verdict; excluded trajectories have none."""

    trajectory: Trajectory
    verdict: Verdict | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """All rollouts of one task in one step; statistics are taken over the kept ones only."""

    task: str
    kept: tuple[Scored, ...]
    excluded: tuple[Scored, ...]
    advantages: tuple[float, ...]
    """One per kept trajectory."""


# ---------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One training sequence: one segment with its trajectory's advantage."""

    trajectory: int
    """Index of the trajectory within the batch: rows that share it share ratio and denominator."""
    token_ids: "NDArray[np.int32]"
    """int32 [n]."""
    target: "NDArray[np.bool_]"
    """bool [n]."""
    captured_logprobs: "NDArray[np.float32]"
    """float32 [n]."""
    policy_versions: "NDArray[np.int32]"
    """int32 [n]."""
    routed_experts: "NDArray[Any] | None"
    """uint8|uint16 [n - 1, layers, top_k]."""
    advantage: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Demonstration:
    """One finished conversation of a scripted player, as the engine would have seen it: what a warm start learns."""

    token_ids: "NDArray[np.int32]"
    """int32 [n]."""
    sampled: "NDArray[np.bool_]"
    """bool [n]: tokens that the player wrote."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """All rows of one optimisation step."""

    step: int
    policy_version: int
    """Version of the trainer's weights before the update."""
    rows: tuple[Row, ...]
    trajectories: int
    """Number of kept trajectories: the loss's outer denominator."""
    temperature: float
    """Rollout temperature: trainer log-probabilities are taken at the same one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recomputed:
    """What the trainer made of one segment at the start of a step, before its update."""

    trial: TrialKey
    segment: int
    """Index within the trajectory."""
    policy_version: int
    """Version of the trainer's weights."""
    advantage: float
    logprobs: "NDArray[np.float32]"
    """float32 [targets of the segment]; *old* log-probabilities: the denominator of the ratio."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one optimisation step did; one row of `steps.parquet`."""

    step: int
    policy_version: int
    """Version after the update."""
    metrics: Mapping[str, float]
    """Flat names with `/`: `reward/mean`, `alignment/pearson_r`, `loss/policy`, `time/train_s`, …"""
