"""A pool that keeps those training tasks of another pool which a policy solved sometimes, by a file of solve counts.

    training tasks → known by the file, as they are now → tried often enough → solved within bounds → kept

Invariant: only training tasks are left out, each for one reason, and those of the file's other tasks are no matter; the
same pool and file give the same tasks. Counts of several runs in one file add up. Refuses a file of another form, and
bounds that leave nothing to train on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.core.contracts import ImageStore, SandboxRuntime, Say
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.naming import first
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.task_contracts import AuditedPool, DoubtedPool, TaskPool, Verifier
from engine.tasks.counts import SolveCount, read_counts

_KEY = "tasks.counts"
_NAMED = 5
"""Tasks that a line names."""

Fate = Literal["kept", "rarely", "often", "unknown", "changed", "few"]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What becomes of the training tasks of a pool."""

    tasks: tuple[Task, ...]
    """All that are left, those of other splits among them."""
    fates: Mapping[Fate, Sequence[str]]
    """Of every training task, by its id; a fate that none met is left out."""


class SelectedPool:
    """Selects from another pool: `contracts.SelectingPool`, and `contracts.DoubtedPool` as far as that is one."""

    def __init__(
        self,
        *,
        pool: TaskPool,
        counts: str,
        solved_least: int,
        solved_most: int,
        of: int,
        unknown: Literal["keep", "drop"],
    ) -> None:
        self.pool = pool
        self.counts = counts
        self.solved_least = solved_least
        self.solved_most = solved_most
        self.of = of
        self.unknown = unknown
        self._loaded: Selection | None = None

    def problems(self) -> list[ConfigError]:
        """Those of the pool, and a file that cannot be read."""
        errors = [_within(error) for error in self.pool.problems()]
        try:
            self._read()
        except ConfigError as error:
            errors.append(error)
        return errors

    def images(self) -> tuple[ImageSpec, ...]:
        """Those of the pool."""
        return self.pool.images()

    async def prepare(self, say: Say) -> None:
        """Prepare the pool. Raises ConfigError before that where the file cannot be read."""
        self._read()
        with _told_within():
            await self.pool.prepare(say)

    async def audit(self, runtime: SandboxRuntime, images: ImageStore, verifier: Verifier, say: Say) -> None:
        """Let the pool try all its tasks, if it is one that does."""
        if isinstance(self.pool, AuditedPool):
            with _told_within():
                await self.pool.audit(runtime, images, verifier, say)

    def doubts(self, tasks: Sequence[Task]) -> Sequence[ConfigError]:
        """Those of the pool about tasks that are left."""
        doubts = self.pool.doubts(tasks) if isinstance(self.pool, DoubtedPool) else ()
        return [_within(error) for error in doubts]

    def load(self) -> tuple[Task, ...]:
        """What is left, in the pool's order. Raises ConfigError where that is nothing to train on."""
        self._loaded = self._select()
        return self._loaded.tasks

    def told(self) -> list[str]:
        """The funnel: training tasks before, what is left, what fell out or could not be judged. Of what was loaded."""
        fates = (self._loaded or self._select()).fates
        before = sum(map(len, fates.values()))
        left = sum(len(names) for fate, names in fates.items() if self._keeps(fate))
        bounds = f"{self.solved_least} to {self.solved_most} of {self.of}"
        lines = [f"tasks: {left} of {before} training tasks selected, solved {bounds} by {self.counts}"]
        for fate, words in self._words().items():
            if names := fates.get(fate, ()):
                verb = "kept" if self._keeps(fate) else "dropped"
                lines.append(f"  {verb} {len(names)} {words}: {first(names, _NAMED)}")
        return lines

    # ---------------------------------------------------------------- steps

    def _select(self) -> Selection:
        known = _by_task(self._read())
        with _told_within():
            tasks = self.pool.load()
        fates = {task.id: self._fate(task, known) for task in tasks if task.split == "train"}
        by_fate: dict[Fate, list[str]] = {}
        for name, fate in fates.items():
            by_fate.setdefault(fate, []).append(name)
        left = tuple(task for task in tasks if task.split != "train" or self._keeps(fates[task.id]))
        if fates and not any(task.split == "train" for task in left):
            raise self._nothing(by_fate)
        return Selection(tasks=left, fates=by_fate)

    def _read(self) -> tuple[SolveCount, ...]:
        return read_counts(_KEY, Path(self.counts).expanduser())

    def _fate(self, task: Task, known: Mapping[str, Sequence[SolveCount]]) -> Fate:
        """Shares are compared without a division: `solved / of` against `solved_least / self.of`."""
        if task.id not in known:
            return "unknown"
        counts = [count for count in known[task.id] if count.fingerprint == task.fingerprint]
        if not counts:
            return "changed"
        solved, of = sum(count.solved for count in counts), sum(count.of for count in counts)
        if of < self.of:
            return "few"
        if solved * self.of < self.solved_least * of:
            return "rarely"
        return "often" if solved * self.of > self.solved_most * of else "kept"

    def _keeps(self, fate: Fate) -> bool:
        return fate == "kept" or (self.unknown == "keep" and fate in ("unknown", "changed", "few"))

    def _nothing(self, fates: Mapping[Fate, Sequence[str]]) -> ConfigError:
        fell = ", ".join(f"{len(fates[fate])} {words}" for fate, words in self._words().items() if fate in fates)
        keys = f"solved_least={self.solved_least}, solved_most={self.solved_most}, of={self.of}, unknown={self.unknown}"
        problem = f"leaves no task to train on with {keys}: {fell}"
        return ConfigError(_KEY, self.counts, problem, "widen these bounds, or measure this pool with job=difficulty")

    def _words(self) -> dict[Fate, str]:
        return {
            "rarely": f"solved less than {self.solved_least} of {self.of}",
            "often": f"solved more than {self.solved_most} of {self.of}",
            "unknown": "not in the file",
            "changed": "changed since they were tried",
            "few": f"with fewer than {self.of} rollouts",
        }


def _by_task(counts: Sequence[SolveCount]) -> dict[str, list[SolveCount]]:
    found: dict[str, list[SolveCount]] = {}
    for count in counts:
        found.setdefault(count.task, []).append(count)
    return found


@contextmanager
def _told_within() -> Iterator[None]:
    """The pool speaks of `tasks`, which here is another's key."""
    try:
        yield
    except ConfigErrors as several:
        raise ConfigErrors([_within(error) for error in several.errors]) from several
    except ConfigError as error:
        raise _within(error) from error


def _within(error: ConfigError) -> ConfigError:
    head, dot, rest = error.key.partition(".")
    key = f"tasks.pool{dot}{rest}" if head == "tasks" else error.key
    return ConfigError(key, error.value, error.problem, error.way_out)
