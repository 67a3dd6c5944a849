"""Copies of target tests: each fails where its test passes honestly, and passes where a result equals everything."""

import random
import types
import unittest
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.verify.canaries import CanaryFile
from engine.verify.clones import make_clones

SOURCE = """
import unittest
from unittest.mock import ANY

def test_first():
    made = add(2, 3)
    assert made == 5
    assert 5 == made
    assert str(made) == add("", "5"), "both sides are made"
    assert [made] == [5]

class TestAll(unittest.TestCase):
    def test_inside(self):
        def helper():
            return 5
        self.assertEqual(add(2, 3), helper())
        self.assertEqual(5, add(2, 3))

def test_that_may_return():
    if add(2, 3) == 5:
        return
    assert add(2, 3) == 6

def test_within(tmp_path):
    for number in ():
        assert add(number, 3) == 6
    with open(__file__):
        assert add(2, 3) == 5

def test_that_equals_all_by_itself():
    assert add(2, 3) == ANY

@retried
def test_decorated():
    assert add(2, 3) == 5

async def test_awaited():
    assert add(2, 3) == 5

def test_less():
    assert add(2, 3) < 6 == 6
"""
GOOD = ("test_first", "TestAll::test_inside")
BAD = (
    "test_that_may_return",
    "test_within",
    "test_that_equals_all_by_itself",
    "test_decorated",
    "test_awaited",
    "test_less",
)


class Everything(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def made(folder: Path, names: Sequence[str], count: int = 64) -> CanaryFile | None:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests/test_calc.py").write_text(SOURCE)
    return make_clones(folder, [f"tests/test_calc.py::{name}" for name in names], count, random.Random(0))


def passed(file: CanaryFile, add: object) -> list[str]:
    """Names of the copies that pass with this `add`."""
    module = types.ModuleType("copied")
    module.__dict__.update(add=add, retried=lambda function: function, __file__=__file__)
    exec(compile(file.source, file.path, "exec"), module.__dict__)
    found = []
    for test in file.expected:
        _, *classes, name = test.split("::")
        try:
            if classes:
                getattr(getattr(module, classes[0])(name), name)()
            else:
                getattr(module, name)()
        except (AssertionError, unittest.TestCase.failureException):
            continue
        found.append(test)
    return found


def test_an_honest_result_fails_every_copy_and_one_that_equals_everything_none(tmp_path: Path) -> None:
    file = made(tmp_path, GOOD)
    assert file is not None and file.copied
    assert len(file.expected) == 6
    assert all(test.startswith(f"{file.path}::") and outcome == "failed" for test, outcome in file.expected.items())
    assert passed(file, lambda a, b: a + b) == []
    assert len(passed(file, lambda a, b: Everything(a + b) if isinstance(a, int) else "5")) >= 4


@pytest.mark.parametrize("name", BAD)
def test_no_copy_is_made_of_an_assertion_that_may_not_be_come_to(tmp_path: Path, name: str) -> None:
    assert made(tmp_path, [name]) is None


def test_a_test_with_parameters_is_copied_with_them(tmp_path: Path) -> None:
    (tmp_path / "test_p.py").write_text(
        "import pytest\n@pytest.mark.parametrize('a', [1, 2])\ndef test_p(a):\n    assert a == a\n"
    )
    file = make_clones(tmp_path, ["test_p.py::test_p[1]", "test_p.py::test_p[2]"], 4, random.Random(0))
    assert file is not None
    (test,) = file.expected
    assert test.rpartition("[")[2] in ("1]", "2]") and "parametrize" in file.source


@pytest.mark.parametrize("targets", [["gone.py::test_a"], ["broken.py::test_a"], ["test_p.py::TestInherited::test_a"]])
def test_what_cannot_be_read_has_no_copies(tmp_path: Path, targets: list[str]) -> None:
    (tmp_path / "broken.py").write_text("def test_a(:\n")
    (tmp_path / "test_p.py").write_text("class Base:\n    def test_a(self):\n        assert f() == 1\n")
    assert make_clones(tmp_path, targets, 4, random.Random(0)) is None


def test_few_are_drawn_of_many(tmp_path: Path) -> None:
    file = made(tmp_path, GOOD, count=2)
    assert file is not None and len(file.expected) == 2
