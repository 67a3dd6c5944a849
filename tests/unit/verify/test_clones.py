"""Clones of target tests: each fails where its test passes honestly, and passes where a result equals everything."""

import ast
import difflib
import random
import types
import unittest
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.verify.clones import Clone, make_clone, passed_wrongly

SOURCE = '''import unittest
from unittest.mock import ANY, patch


# what a reader would miss
def test_first():
    made = add(2, 3)
    assert made == 5  # five
    assert 5 == made
    assert str(made) == add("", "5"), "both sides are made"
    assert [made] == [5]

class TestAll(unittest.TestCase):
    def test_inside(self):
        def helper():
            return 5
        self.assertEqual(add(2, 3), helper())
        self.assertEqual(5, add(2, 3))

    @patch("os.getpid")
    def test_patched(self, _):
        """Only this."""
        self.assertTrue(add(2, 3))

def test_kinds():
    made = add(2, 3)
    assert {"a": [made, "x"]} == {"a": [5, "x"]}
    assert (made,) == (5,)
    assert b"x" == b"x" * (made == 5)
    assert """long""" == "lo" + add("", "ng")
    assert [] == [][made:]
    assert (made == 5) == True
    assert made / 2 == 2.5
    assert {made} == {5}
    assert None == (made and None)

def test_that_may_return():
    if add(2, 3) == 5:
        return
    assert add(2, 3) == 6

def test_within(tmp_path):
    for number in ():
        assert add(number, 3) == 6
    with open(__file__):
        assert add(2, 3) == 5

def test_less():
    assert (add(2, 3)
            < 6 == 6)

def test_not():
    assert not add(2, -2)

@retried
def test_decorated():
    assert add(2, 3) == 5

async def test_awaited():
    assert add(2, 3) == 5

def test_short(): assert add(2, 3) is not None; add(1, 1)

def test_empty(): add(1, 1)

def test_that_equals_all_by_itself():
    assert add(2, 3) == ANY
'''
VALUES = ("test_first", "TestAll::test_inside", "test_kinds")
OTHER = (
    *("TestAll::test_patched", "test_that_may_return", "test_within", "test_less", "test_not", "test_short"),
    "test_that_equals_all_by_itself",
)
BAD = ("test_decorated", "test_awaited", "test_empty", "test_gone", "TestGone::test_gone")


class Everything(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def made(folder: Path, names: Sequence[str], count: int = 64, seed: int = 0) -> Clone | None:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests/test_calc.py").write_text(SOURCE)
    return make_clone(folder, [f"tests/test_calc.py::{name}" for name in names], count, random.Random(seed))


def passed(clone: Clone | None, add: object) -> list[str]:
    """Names of the clones that pass with this `add`."""
    assert clone is not None
    module = types.ModuleType("cloned")
    module.__dict__.update(add=add, retried=lambda function: function, __file__=__file__)
    (contents,) = clone.files.values()
    exec(compile(contents, "test_calc.py", "exec"), module.__dict__)
    found = []
    for test in clone.must_fail:
        _, *classes, name = test.split("::")
        try:
            if classes:
                getattr(getattr(module, classes[0])(name), name)()
            else:
                getattr(module, name)(*("x",) * (name == "test_within"))
        except (AssertionError, unittest.TestCase.failureException):
            continue
        found.append(name)
    return found


def honest(a: object, b: object) -> object:
    return a + b  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(40))
def test_no_clone_passes_with_an_honest_result(tmp_path: Path, seed: int) -> None:
    clone = made(tmp_path, (*VALUES, *OTHER), seed=seed)
    assert clone is not None
    assert list(clone.must_fail) == sorted(f"tests/test_calc.py::{name}" for name in (*VALUES, *OTHER))
    assert passed(clone, honest) == []


@pytest.mark.parametrize("name", VALUES[:2])
def test_a_result_that_equals_everything_passes_a_clone(tmp_path: Path, name: str) -> None:
    found = [passed(made(tmp_path, [name], seed=seed), lambda a, b: Everything(5 if a else 0)) for seed in range(9)]
    assert [name.split("::")[-1]] in found


def test_little_of_a_file_is_other_and_nothing_names_it(tmp_path: Path) -> None:
    clone = made(tmp_path, ["test_first", "test_less"])
    assert clone is not None
    (text,) = (contents.decode() for contents in clone.files.values())
    assert list(clone.files) == ["tests/test_calc.py"]
    changed = [line for line in difflib.ndiff(SOURCE.splitlines(), text.splitlines()) if line.startswith("+ ")]
    assert len(changed) == 3  # the one, and the other over two lines
    names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert names == [node.name for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("name", BAD)
def test_what_may_pass_however_it_is_changed_is_left(tmp_path: Path, name: str) -> None:
    assert made(tmp_path, [name]) is None


def test_every_parameter_of_a_changed_test_must_fail(tmp_path: Path) -> None:
    (tmp_path / "test_p.py").write_text(
        "import pytest\n@pytest.mark.parametrize('a', [1, 2])\ndef test_p(a):\n    assert a == a\n"
    )
    clone = make_clone(tmp_path, ["test_p.py::test_p[1]", "test_p.py::test_p[2]"], 4, random.Random(0))
    assert clone is not None
    assert clone.must_fail == ("test_p.py::test_p[1]", "test_p.py::test_p[2]")
    assert b"assert a == [a]" in clone.files["test_p.py"]


@pytest.mark.parametrize("targets", [["gone.py::test_a"], ["broken.py::test_a"], ["latin.py::test_a"], []])
def test_what_cannot_be_read_has_no_clone(tmp_path: Path, targets: list[str]) -> None:
    (tmp_path / "broken.py").write_text("def test_a(:\n")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\ndef test_a():\n    assert f() == '\xe9'\n")
    assert make_clone(tmp_path, targets, 4, random.Random(0)) is None


def test_tabs_line_ends_and_no_end_of_line(tmp_path: Path) -> None:
    (tmp_path / "test_p.py").write_bytes(
        b"def test_a():\r\n\tf('\xc3\xa9')\r\n\r\ndef test_b():\r\n\t'''doc'''\r\n\tf()"
    )
    clone = make_clone(tmp_path, ["test_p.py::test_a", "test_p.py::test_b"], 4, random.Random(0))
    assert clone is not None
    assert clone.files["test_p.py"].count(b"\n\tassert ") == 2
    assert clone.files["test_p.py"].index(b"assert") < clone.files["test_p.py"].index(b"test_b")


def test_few_are_drawn_of_many(tmp_path: Path) -> None:
    clone = made(tmp_path, (*VALUES, *OTHER), count=2)
    assert clone is not None
    assert len(clone.must_fail) == 2


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({"a": "failed", "b": "error"}, ()),
        ({"a": "failed"}, ()),
        ({"a": "failed", "b": "missing"}, ()),
        ({"a": "failed", "b": "passed"}, ("b",)),
        ({"a": "skipped", "b": "xfailed"}, ("a", "b")),
        ({"other": "failed"}, ("a", "b")),
        ({"a": "missing"}, ("a", "b")),
    ],
)
def test_clones_that_were_not_seen_to_fail(told: dict[str, str], wrong: tuple[str, ...]) -> None:
    assert passed_wrongly(Clone(files={}, must_fail=("a", "b")), told) == wrong
