"""The groups that are only values: how much is run and on what.

Invariant: every value comes from the configuration; there is no default here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many trials, steps and validations, and what may be in flight."""

    epochs: int
    """Passes over the training tasks; each is shuffled anew from the run's seed."""
    steps: int | None
    """Optimisation steps at most; None: all steps of all epochs."""
    prompts_per_step: int
    """Tasks per optimisation step."""
    rollouts_per_prompt: int
    """Trials per task: the size of a group."""
    harness_mix: Mapping[str, Any]
    """`by` (trajectory or task) and `weights` (harness → weight): see `engine.run.mix`."""
    drop_last: bool
    """Whether the incomplete batch at the end of an epoch is dropped."""
    max_turns: int
    """LLM calls after which a trial ends."""
    concurrency: int
    """Trials in flight at a time."""
    max_attempts: int
    """Tries per trial by one start of the run when infrastructure fails, the first included."""
    quarantine: Sequence[str]
    """Signs of a reward that says nothing (`engine.observe.degenerate`) that keep a task out of the rest of the run."""
    engine_restarts: int
    """Times that one start of the run starts a dead engine again; 0: its death ends the run."""
    staleness_threshold: int
    """Weight versions that a trained token may lag behind; 0: rollouts and updates alternate."""
    partial_rollouts: bool
    """Whether trials go on across a weight update instead of being waited for."""
    checkpoints_kept: int | None
    """Newest checkpoints that stay on disk; None: all."""
    validation_first: bool
    """Whether the policy is validated before the first step too."""
    validation_every: int
    """Steps between validations; 0: none after steps."""
    validation_prompts: int | None
    """Validation tasks at a time, drawn once by the run's seed; None: all."""
    validation_samples: int
    """Trials per validation task."""
    validation_temperature: float
    """Sampling temperature in validation."""
    validation_top_p: float
    """Nucleus (probability mass) sampled from in validation."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """What the machine offers to the processes of a run."""

    device: Literal["cpu", "cuda"]
    """Where the trainer and the engine compute."""
    threads: int
    """CPU threads of each torch process."""
