"""What tasks come from, and what makes a reward of them: pools, defences and the verifier; see contracts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from engine.core.contracts import ImageStore, Preparable, Sandbox, SandboxRuntime, Say
from engine.core.errors import ConfigError
from engine.core.records import Exchange, Finding, Patch, Task, Verdict
from engine.core.specs import ImageSpec


class TaskPool(Preparable, Protocol):
    """A list of tasks."""

    def load(self) -> tuple[Task, ...]: ...

    def images(self) -> tuple[ImageSpec, ...]:
        """Images that the tasks need; known without the tasks being built."""
        ...


@runtime_checkable
class AuditedPool(Protocol):
    """A pool that runs candidate tasks in sandboxes before it admits them: after `prepare`, within `job=prepare`."""

    async def audit(self, runtime: SandboxRuntime, images: ImageStore, verifier: "Verifier", say: Say) -> None:
        """Admit what holds, with the runtime started; goes on where an interrupted audit stopped.

        Raises RunError when too few tasks hold."""
        ...


@runtime_checkable
class DoubtedPool(AuditedPool, Protocol):
    """An audited pool whose tasks stand before they are tried: they can be loaded, but not yet trained on."""

    def doubts(self, tasks: Sequence[Task]) -> Sequence[ConfigError]:
        """What keeps loaded tasks from being trained on: the audit refused them, or did not try them yet."""
        ...


@runtime_checkable
class SelectingPool(TaskPool, Protocol):
    """A pool that leaves out training tasks of another one."""

    pool: TaskPool
    """All tasks: a warm start is made of these, so that a selection leaves the policy it was measured with as it is."""

    def told(self) -> Sequence[str]:
        """What is left out and why, as lines for a person. Raises as `load`."""
        ...


Mode = Literal["enforce", "observe", "off"]
"""How a defence acts: enforce: against what it finds; observe: it finds the same, notes it and changes nothing."""


class Defense(Protocol):
    """One defence: it acts in one or more phases of a trial, fails closed, and says what it did."""

    name: str
    mode: Mode

    async def inspect(self, task: Task, root: Path) -> Sequence[Finding]:
        """On the host, before anything else, over each folder that the agent will see and that never changes: the root
        of the task's image, and the harness's runtime."""
        ...

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """On the host, over the staged copy of the repository, before it enters the sandbox."""
        ...

    async def settle(self, task: Task, sandbox: Sandbox, outlived: int) -> Sequence[Finding]:
        """After the harness ended and all processes were killed, `outlived` of them; before the tree is read."""
        ...

    def review(self, exchanges: Sequence[Exchange]) -> Sequence[Finding]:
        """Over what was said between harness and model; no verdict, so it has only findings."""
        ...

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """Filter the patch made from the agent's tree (a downloaded host copy)."""
        ...


class Verifier(Protocol):
    """Grades a patch, and the artefacts that its task declares, in a fresh sandbox."""

    artifact_files: int
    """How many files it takes beside a patch."""
    artifact_mb: int
    """How many MiB these may have together."""

    def toolchain(self) -> ImageSpec: ...

    async def grade(self, task: Task, patch: Patch, runtime: SandboxRuntime, images: ImageStore, name: str) -> Verdict:
        """Raises GraderError when there can be no verdict."""
        ...

    def varied(self, seed: int, *, shuffled: bool) -> "Verifier":
        """The same grader with what no sound task depends on changed by the seed: hashes and, if asked, the order of
        the tests."""
        ...
