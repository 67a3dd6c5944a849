"""What the configuration engine hands to a job: the resolved configuration and one object a group.

Invariant: nothing in here has been started; constructors only store what the configuration says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from engine.config.composed import Written
from engine.core.contracts import Harness, Inference
from engine.core.task_contracts import TaskPool, Verifier
from engine.core.training_contracts import Algorithm, Model, RoutingReplay, Trainer

if TYPE_CHECKING:  # the groups that are only values are run's own; this record merely carries them
    from engine.run.settings import Compute, Schedule


class Job(Protocol):
    """What `python -m engine` does once everything is built."""

    async def run(self, run: "Built") -> int:
        """Do the job; returns the exit code. Raises LegoError, which is shown as one line a problem."""
        ...


@runtime_checkable
class RunJob(Job, Protocol):
    """A job whose work is a run: it lies in the run's directory, and the same command again goes on with it."""

    def check(self, run: "Built") -> None:
        """Raise ConfigError for what keeps it from starting, within seconds and without starting anything."""
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
    interpolated: Mapping[str, str]
    """Dotted key → the interpolation that its value came from."""
    written: Written | None
    """The run that is run again (`from=RUN`)."""
    origins: Callable[[], Mapping[str, str]]
    """Dotted key → file or command line that set it; worked out when it is asked for."""
    seed: int
    fresh: bool
    """Whether an existing run directory is set aside instead of resumed."""
    other_data: bool
    """Whether a run is run again although its tasks or its checkpoint are others here."""
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
