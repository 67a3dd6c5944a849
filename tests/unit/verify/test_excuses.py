"""Skips and expected failures count only where the withheld source asks for them."""

from pathlib import Path

import pytest

from engine.verify.excuses import Excuses

SOURCE = """
import unittest
import pytest


def test_plain():
    assert True


@pytest.mark.skipif(True, reason="x")
def test_marked():
    pass


class TestGroup(unittest.TestCase):
    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    def test_inside(self):
        self.skipTest("x")

    def test_bare(self):
        pass
"""


SHARED = """
import pytest

known = pytest.mark.xfail(reason="known")
CASES = [1, pytest.param(2, marks=known)]

def need():
    pytest.skip("not here")

class Base:
    def setup_method(self):
        need()

@known
def test_marked(): pass

@pytest.mark.parametrize("case", CASES)
def test_cases(case): pass

def test_helped(): need()

def test_served(server): pass

def test_plain(): pass

class TestBelow(Base):
    def test_method(self): pass

class TestAlone:
    def test_alone(self): pass
"""


@pytest.fixture
def excuses(tmp_path: Path) -> Excuses:
    (tmp_path / "tests/sub").mkdir(parents=True)
    (tmp_path / "tests/test_a.py").write_text(SOURCE)
    (tmp_path / "tests/test_b.py").write_text("import pytest\npytestmark = pytest.mark.xfail\n\n\ndef test_b(): pass\n")
    (tmp_path / "tests/sub/conftest.py").write_text("def pytest_runtest_setup(item): item.add_marker('skip')\n")
    (tmp_path / "tests/sub/test_c.py").write_text("def test_c(): pass\n")
    (tmp_path / "tests/test_d.py").write_text(SHARED)
    (tmp_path / "tests/conftest.py").write_text("import pytest\n@pytest.fixture\ndef server(): pytest.skip('no')\n")
    return Excuses(tmp_path)


@pytest.mark.parametrize(
    ("test", "outcome", "granted"),
    [
        ("tests/test_a.py::test_plain", "passed", True),
        ("tests/test_a.py::test_plain", "failed", True),
        ("tests/test_a.py::test_plain", "skipped", False),
        ("tests/test_a.py::test_plain", "xfailed", False),
        ("tests/test_a.py::test_marked", "skipped", True),
        ("tests/test_a.py::test_marked[a::b]", "skipped", True),
        ("tests/test_a.py::test_marked", "xfailed", False),
        ("tests/test_a.py::TestGroup::test_expected", "xfailed", True),
        ("tests/test_a.py::TestGroup::test_expected", "xpassed", True),
        ("tests/test_a.py::TestGroup::test_inside", "skipped", True),
        ("tests/test_a.py::TestGroup::test_bare", "skipped", False),
        ("tests/test_a.py::TestGroup::test_inherited", "skipped", True),
        ("tests/test_b.py::test_b", "xfailed", True),
        ("tests/test_b.py::test_b", "skipped", False),
        ("tests/sub/test_c.py::test_c", "skipped", True),
        ("tests/test_d.py::test_marked", "xfailed", True),
        ("tests/test_d.py::test_cases[2]", "xfailed", True),
        ("tests/test_d.py::test_helped", "skipped", True),
        ("tests/test_d.py::test_served", "skipped", True),
        ("tests/test_d.py::test_plain", "xfailed", False),
        ("tests/test_d.py::test_plain", "skipped", False),
        ("tests/test_d.py::TestBelow::test_method", "skipped", True),
        ("tests/test_d.py::TestAlone::test_alone", "xfailed", False),
    ],
)
def test_an_excuse_comes_from_the_source(excuses: Excuses, test: str, outcome: str, granted: bool) -> None:
    assert excuses.grants(test, outcome) is granted  # type: ignore[arg-type]
