"""Harbor-format task directories as task rows, so that one table can hold tasks of every source.

The tree stays where it is and the row names it; both diffs are made by contents. A task that this engine would refuse
to run is refused here with the same words.
"""

from pathlib import Path

from engine.core.patch import difference, read_tree, under
from engine.core.specs import ImageSpec
from engine.tasks.harbor import read_task
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.values import language_of

_NO_IMAGE = ImageSpec(name="unknown", suite=None, packages=(), pip=())
"""A directory does not say which image the pool gives it."""


def harbor_folders(path: Path) -> list[Path]:
    """The task directory itself, or those below a folder, by name; none where there are none."""
    if (path / "task.toml").is_file():
        return [path.resolve()]
    return sorted(file.parent.resolve() for file in path.glob("*/task.toml"))


def read_harbor(folder: Path) -> TaskRow:
    """The row of one directory. Raises ConfigError that names file and key."""
    task = read_task(folder, split="train", image=_NO_IMAGE)
    base, tests = read_tree(task.repository), read_tree(task.tests)
    old = {path: held for path, held in base.items() if under(path, task.test_paths)}
    return TaskRow(
        format="harbor",
        id=task.id,
        instruction=task.instruction,
        hints="",
        repository=str(task.repository),
        base_commit=None,
        setup_patch="",
        reference=task.reference.diff if task.reference is not None else None,
        test_patch=difference(old, tests).diff,
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        expected={},
        image=None,
        workdir=task.workdir,
        recipe="",
        install=(),
        test_command=(),
        log_parser=None,
        environment_setup_commit=None,
        version=None,
        created_at=None,
        language=language_of(task.reference.paths if task.reference is not None else task.test_paths),
        license=None,
        split=None,
    )
