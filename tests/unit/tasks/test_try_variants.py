"""The runner that tries variants: limits, order, and a tree that is left as it was."""

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from engine.tasks.trials import RUNNER

TESTS = """
from module import value

def test_value():
    assert value() == 1

def test_kind():
    assert isinstance(value(), int)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text("def value():\n    return 1\n")
    (tmp_path / "test_module.py").write_text(TESTS)
    return tmp_path


def attempt(
    root: Path, *texts: str, cpu_s: int = 20, wall_s: float = 60, keep_bytecode: bool = False, **changes: Any
) -> list[Any]:
    """Results of variants of module.py; an empty text stands for the module as it is."""
    usual = {"tests": ["test_module.py"], "select": [], "most": 0, "trace": "", "cpu_s": cpu_s, "wall_s": wall_s}
    spec = {
        "root": str(root),
        "toolchain": str(Path(pytest.__file__).parents[1]),
        "sites": [],
        "python_path": [str(root)],
        "arguments": ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(root)],
        "memory_mb": 512,
        "keep_bytecode": keep_bytecode,
        "variants": [usual | {"write": {"module.py": text} if text else {}} | changes for text in texts],
    }
    command = [sys.executable, "-s", "-S", str(RUNNER)]
    environment = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, input=json.dumps(spec).encode(), env=environment, capture_output=True, check=True)
    before = {path.name for path in root.iterdir()}
    assert before - {"__pycache__"} == {"module.py", "test_module.py"}
    assert (root / "module.py").read_text() == "def value():\n    return 1\n"
    return list(json.loads(zlib.decompress(base64.b64decode(done.stdout.removeprefix(b"RESULT ")))))


def test_outcomes_and_messages(root: Path) -> None:
    good, bad = attempt(root, "", "def value():\n    return 2\n")
    assert good["outcomes"] == {"test_module.py::test_value": "passed", "test_module.py::test_kind": "passed"}
    assert bad["outcomes"] == {"test_module.py::test_value": "failed", "test_module.py::test_kind": "passed"}
    assert "assert 2 == 1" in bad["messages"]["test_module.py::test_value"]


def test_equally_long_variants_are_not_mistaken_for_kept_bytecode(root: Path) -> None:
    attempt(root, "", keep_bytecode=True)
    results = attempt(root, *(f"def value():\n    return {number}\n" for number in (2, 1, 3)))
    assert [result["outcomes"]["test_module.py::test_value"] for result in results] == ["failed", "passed", "failed"]


def test_a_variant_that_hangs_is_stopped_and_the_next_runs(root: Path) -> None:
    busy, good = attempt(root, "def value():\n    while True: pass\n", "", cpu_s=2)
    assert (busy["ended"], busy["outcomes"]) == ("died", {})
    assert good["ended"] == "exited"


def test_a_variant_that_waits_for_ever_is_stopped(root: Path) -> None:
    (waiting,) = attempt(root, "import time\n\ndef value():\n    time.sleep(999)\n", wall_s=3)
    assert (waiting["ended"], waiting["outcomes"]) == ("timeout", {})


def test_a_variant_that_eats_memory_fails_alone(root: Path) -> None:
    greedy, dying, good = attempt(
        root, "def value():\n    return len('x' * (2 << 30))\n", "import os\n\ndef value():\n    os.abort()\n", ""
    )
    assert greedy["outcomes"]["test_module.py::test_value"] == "failed"
    assert "MemoryError" in greedy["messages"]["test_module.py::test_value"]
    assert dying["ended"] == "died"
    assert set(good["outcomes"].values()) == {"passed"}


def test_a_module_that_cannot_be_imported_is_broken(root: Path) -> None:
    (result,) = attempt(root, "def value(:\n")
    assert (result["broken"], result["outcomes"]) == (1, {})


def test_executed_lines_name_their_tests(root: Path) -> None:
    (result,) = attempt(root, "", trace="module.py")
    assert result["lines"] == {"1": [-1], "2": [0, 1]}


def test_selection_and_an_early_stop(root: Path) -> None:
    (selected,) = attempt(root, "", select=["test_module.py::test_kind"])
    assert list(selected["outcomes"]) == ["test_module.py::test_kind"]
    (stopped,) = attempt(root, "def value():\n    return 'x'\n", most=1)
    assert list(stopped["outcomes"]) == ["test_module.py::test_value"]
