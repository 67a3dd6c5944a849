"""A pool of the user's own Harbor-format task directories.

Invariant: every folder below `path` that holds a `task.toml` is a task, in the order of their names; nothing is copied
and nothing built. Refuses a folder without tasks, each task as `engine.tasks.harbor` does, and to train on one whose
reference fails or whose untouched base passes (`job=prepare` tries them).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.contracts import ImageStore, SandboxRuntime, Say
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.task_contracts import Verifier
from engine.tasks.harbor import read_task
from engine.tasks.pool import check_names, image_spec, split_of
from engine.tasks.proving import doubts, prove


class HarborDirectory:
    """Task directories below one folder: `contracts.TaskPool` and `contracts.DoubtedPool`."""

    def __init__(self, *, path: str, validation: Sequence[str], image: Mapping[str, Any]) -> None:
        self.path = path
        self.validation = validation
        self.image = image

    def problems(self) -> list[ConfigError]:
        """A missing folder, unknown names; whatever is wrong within a task is said by `load`."""
        folders = self._folders()
        if not folders:
            problem = "no folder in it holds a task.toml" if Path(self.path).is_dir() else "is not a folder"
            return [ConfigError("tasks.path", self.path, problem, "name the parent folder of Harbor task directories")]
        return check_names("tasks.validation", self.validation, [(folder.name,) for folder in folders])

    def images(self) -> tuple[ImageSpec, ...]:
        """The one image of all tasks."""
        return (image_spec(self.image),)

    async def prepare(self, say: Say) -> None:
        """Nothing to build: the directories are the user's. Raises ConfigErrors where they are not there."""
        problems = self.problems()
        if problems:
            raise ConfigErrors(problems)
        say(f"tasks: {len(self._folders())} in {self.path}")

    def load(self) -> tuple[Task, ...]:
        """All tasks, by name. Raises ConfigError that names file and key."""
        (image,) = self.images()
        return tuple(
            read_task(folder, split=split_of((folder.name,), self.validation), image=image)
            for folder in self._folders()
        )

    async def audit(self, runtime: SandboxRuntime, images: ImageStore, verifier: Verifier, say: Say) -> None:
        """Try every task that was not found to hold yet; `doubts` says what came of it."""
        await prove(self.load(), (runtime, images, verifier), say)

    def doubts(self, tasks: Sequence[Task]) -> Sequence[ConfigError]:
        """Tasks that were refused or not tried yet."""
        return doubts("tasks.path", self.path, tasks)

    def _folders(self) -> list[Path]:
        root = Path(self.path).expanduser()
        return sorted(file.parent for file in root.glob("*/task.toml"))
