"""What the configuration engine hands to a job: the resolved configuration and one object a group.

Invariant: nothing in here has been started; constructors only store what the configuration says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.core.contracts import (
    Algorithm,
    Harness,
    Inference,
    Model,
    RoutingReplay,
    TaskPool,
    Trainer,
    Verifier,
)

if TYPE_CHECKING:  # the groups that are only values are run's own; this record merely carries them
    from engine.run.settings import Compute, Schedule


class Job(Protocol):
    """What `python -m engine` does once everything is built."""

    async def run(self, run: "Built") -> int:
        """Do the job; returns the exit code. Raises LegoError, which is shown as one line a problem."""
        ...


@dataclass(frozen=True, kw_only=True)
class Built:
    """A validated configuration and the objects it describes."""

    config: Mapping[str, Any]
    """Resolved, plain, validated."""
    hash: str
    """Of the configuration without what does not change the results: names the run."""
    directory: Path
    """The run directory; not yet made."""
    command_line: tuple[str, ...]
    """The overrides as given."""
    origins: Callable[[], Mapping[str, str]]
    """Dotted key → file or command line that set it; worked out when it is asked for."""
    seed: int
    fresh: bool
    """Whether an existing run directory is set aside instead of resumed."""
    experiment: str
    scale: str
    job: Job
    model: Model
    harnesses: Mapping[str, Harness]
    proxy: Any
    """A `Proxy` with its sampling (`temperature`, `top_p`)."""
    inference: Inference
    sandbox: Any
    """A `SandboxRuntime` with its limits (`pids`, `disk_mb`)."""
    defense: Any
    """`stages`: the defences in the order in which they act."""
    verify: Verifier
    tasks: TaskPool
    algorithm: Algorithm
    routing_replay: RoutingReplay
    train: Trainer
    schedule: "Schedule"
    compute: "Compute"
    observe: Any
    """Settings of what is shown and logged (`engine.observe`)."""
