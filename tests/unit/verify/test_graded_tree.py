"""The tree that is graded holds the agent's code and the grader's tests, nothing else of either."""

from pathlib import Path

import pytest
from calc_task import BASE_CODE, FIXED_CODE, TESTS, change, patch_of, write_calc

from engine.core.errors import GraderError, PatchError
from engine.core.records import Task
from engine.verify.canaries import CanaryFile
from engine.verify.tree import assemble


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_calc(tmp_path)


def test_code_from_the_patch_and_tests_from_the_grader(task: Task, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    canary = CanaryFile(path="tests/test_zz.py", source="x = 1\n", expected={})
    patch = patch_of(
        change("calc/__init__.py", BASE_CODE, FIXED_CODE),
        change("tests/test_calc.py", (task.repository / "tests/test_calc.py").read_bytes(), b"cheat"),
        change("tests/conftest.py", None, b"cheat"),
        change("conftest.py", None, b"cheat"),
        change("calc/conftest.py", None, b"cheat"),
    )
    findings = assemble(task, patch, [canary], tree)
    assert (tree / "calc/__init__.py").read_bytes() == FIXED_CODE
    assert {path.name for path in (tree / "tests").iterdir()} == {"test_calc.py", "test_zz.py"}
    assert (tree / "tests/test_calc.py").read_bytes() == TESTS
    assert not list(tree.rglob("conftest.py"))
    assert [finding.paths for finding in findings] == [
        ("tests/test_calc.py", "tests/conftest.py", "conftest.py", "calc/conftest.py")
    ]


def test_paths_outside_the_repository_are_left_out_with_a_finding(task: Task, tmp_path: Path) -> None:
    patch = patch_of(
        change("../escaped", None, b"x"), change(".git/hooks/x", None, b"x"), change("calc/new.py", None, b"")
    )
    findings = assemble(task, patch, (), tmp_path / "a/tree")
    assert (tmp_path / "a/tree/calc/new.py").exists()
    assert not (tmp_path / "a/escaped").exists()
    assert findings[0].paths == ("../escaped", ".git/hooks/x")


def test_a_patch_of_another_base_is_a_grader_error(task: Task, tmp_path: Path) -> None:
    with pytest.raises(GraderError, match="another base"):
        assemble(task, patch_of(change("calc/__init__.py", b"other", FIXED_CODE)), (), tmp_path / "tree")


def test_what_cannot_be_laid_over_the_base_is_the_agents_doing(task: Task, tmp_path: Path) -> None:
    with pytest.raises(PatchError):
        assemble(task, patch_of(change("calc/__init__.py/deep.py", None, b"x")), (), tmp_path / "tree")
