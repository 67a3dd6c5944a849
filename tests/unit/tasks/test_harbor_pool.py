"""The pool of a user's own directories."""

from pathlib import Path

import pytest
from calc_task import write_calc

from engine.core.errors import ConfigErrors
from engine.tasks.directory import HarborDirectory

IMAGE = {"name": "calc", "suite": "bookworm", "packages": ["python3"], "pip": []}


def pool(path: Path, *validation: str) -> HarborDirectory:
    return HarborDirectory(path=str(path), validation=list(validation), image=IMAGE)


def test_tasks_are_found_and_split_by_name(tmp_path: Path) -> None:
    first, second = write_calc(tmp_path), write_calc(tmp_path / "x")
    second.directory.rename(tmp_path / "other")
    (tmp_path / "notes").mkdir()
    made = pool(tmp_path, "other")
    assert made.problems() == []
    assert [(task.id, task.split) for task in made.load()] == [("calc", "train"), ("other", "validation")]
    assert made.images()[0] == first.image


def test_a_folder_without_tasks_is_a_problem(tmp_path: Path) -> None:
    (problem,) = pool(tmp_path).problems()
    assert (problem.key, problem.value) == ("tasks.path", str(tmp_path))
    (problem,) = pool(tmp_path / "none").problems()
    assert "not a folder" in problem.problem


async def test_a_missing_folder_ends_a_prepare_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="is not a folder"):
        await pool(tmp_path / "none").prepare(print)


def test_an_unknown_held_out_name_is_a_problem(tmp_path: Path) -> None:
    write_calc(tmp_path)
    (problem,) = pool(tmp_path, "clac").problems()
    assert (problem.key, problem.value) == ("tasks.validation.0", "clac")
    assert "calc" in problem.way_out
