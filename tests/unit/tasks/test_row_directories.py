"""Task directories of rows: from a clone's commit and the row's diffs, what the engine reads, runs and grades."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calc_task import IMAGE
from task_rows import BUG, FAILING, FIX, ROWS, TESTS, raw

from engine.core.errors import ConfigError, PatchError
from engine.core.patch import apply_patch, read_tree
from engine.core.records import Task
from engine.tasks.harbor import Limits, read_task, write_task
from engine.tasks.rows.checkouts import Checkouts
from engine.tasks.rows.directories import draft_of
from engine.tasks.rows.formats import READERS
from engine.tasks.rows.funnel import obstacle
from engine.tasks.rows.record import TaskRow

READ = {reader.name: reader.read for reader in READERS}
LIMITS = Limits(agent_timeout_s=60, grade_timeout_s=30, memory_mb=512, cpus=1)
BROKEN, RIGHT = b"def add(a, b):\n    return a - b\n", b"def add(a, b):\n    return a + b\n"
OLD_TESTS = b"from calc.core import add\n\n\ndef test_mul():\n    assert True\n"


def read(name: str, **changes: Any) -> TaskRow:
    return READ[name.removesuffix("_2")](raw(ROWS[name], **changes))


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def clone(folder: Path, files: dict[str, bytes], *, executable: tuple[str, ...] = ()) -> str:
    """A repository with one commit and a later one that nobody asks for; returns the first."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", ".")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        if name in executable:
            (folder / name).chmod(0o755)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    first = git(folder, "rev-parse", "HEAD")
    (folder / "later.py").write_text("")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "later")
    return first


BASE = {"calc/__init__.py": b"", "calc/core.py": BROKEN, "tests/test_old.py": OLD_TESTS, "bin/run": b"#!/bin/sh\n"}


def made(tmp_path: Path, row: TaskRow) -> Task:
    """The task that is read back from the row's directory."""
    tree = Checkouts(tmp_path / "clones").tree(row.repository, str(row.base_commit))
    directory = write_task(draft_of(row, tree, IMAGE, LIMITS), tmp_path / "made" / row.id)
    return read_task(directory, split="train", image=IMAGE)


@pytest.mark.parametrize("place", ["owner__calc", "owner/calc", "calc", "calc.git"])
def test_an_issue_becomes_a_task(tmp_path: Path, place: str) -> None:
    commit = clone(tmp_path / "source", BASE, executable=("bin/run",))
    where = tmp_path / "clones" / place
    where.parent.mkdir(parents=True)
    git(tmp_path, "clone", "-q", *(["--bare"] if place.endswith(".git") else []), "source", str(where))
    task = made(tmp_path, read("swe_gym", base_commit=commit))
    received = read_tree(task.repository)
    assert received["calc/core.py"] == (BROKEN, False)
    assert received["bin/run"] == (b"#!/bin/sh\n", True)
    assert sorted(received) == sorted(BASE), "neither the later commit nor the tests that judge"
    assert sorted(read_tree(task.tests)) == ["tests/test_core.py", "tests/test_old.py"]
    assert task.test_paths == ("tests/test_core.py", "tests/test_old.py")
    assert (task.fail_to_pass, task.pass_to_pass) == ((FAILING,), ("tests/test_old.py::test_mul[a b]",))
    assert (task.workdir, task.python_path, task.memory_mb) == ("/testbed", (".",), 512)
    assert task.reference is not None
    apply_patch(task.reference, task.repository)
    assert (task.repository / "calc/core.py").read_bytes() == RIGHT


def test_swe_smiths_bug_is_put_into_the_right_code_and_its_tests_are_taken_out(tmp_path: Path) -> None:
    commit = clone(tmp_path / "clones/owner__calc", {**BASE, "calc/core.py": RIGHT, "tests/test_core.py": TEST_FILE})
    task = made(tmp_path, read("swe_smith", repo=f"swesmith/owner__calc.{commit[:8]}"))
    received = read_tree(task.repository)
    assert received["calc/core.py"] == (BROKEN, False)
    assert "tests/test_core.py" not in received, "the agent does not see the tests that fail"
    assert "tests/test_old.py" in received
    assert read_tree(task.tests)["tests/test_core.py"] == (TEST_FILE, False)
    assert task.reference is not None
    assert [(change.before, change.after) for change in task.reference.changes] == [(BROKEN, RIGHT)]


TEST_FILE = b"from calc.core import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"


def test_a_package_below_src_is_found(tmp_path: Path) -> None:
    commit = clone(tmp_path / "clones/calc", {"src/calc/core.py": BROKEN, "tests/test_old.py": OLD_TESTS})
    task = made(tmp_path, read("swe_gym", base_commit=commit, patch=FIX.replace("calc/", "src/calc/")))
    assert task.python_path == ("src", ".")


def test_what_does_not_fit_the_commit_is_said_by_its_column(tmp_path: Path) -> None:
    tree = {name: (data, False) for name, data in BASE.items()}
    row = read("swe_gym")
    for changes, problem in (
        ({"reference": BUG}, "^reference: calc/core.py: does not hold the lines of the hunk at line 1"),
        ({"test_patch": TESTS.replace("test_core", "test_old")}, "^test_patch: tests/test_old.py: is to be new, and"),
        ({"setup_patch": BUG}, "^setup_patch: calc/core.py: does not hold"),
        ({"pass_to_pass": ("tests/gone.py::test",)}, "^tests/gone.py: holds tests of the row, and is neither in"),
    ):
        with pytest.raises(PatchError, match=problem):
            draft_of(replace(row, **changes), tree, IMAGE, LIMITS)


def test_what_a_clone_lacks_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "clones"
    commit = clone(folder / "owner__calc", BASE)
    clones = Checkouts(folder)
    with pytest.raises(ConfigError, match=r"clones': holds no clone of a/b; clone it there as a__b$"):
        clones.tree("a/b", commit)
    with pytest.raises(ConfigError, match=r"owner__calc': does not hold the commit 0123456789; fetch it there$"):
        clones.tree("owner/calc", "0123456789")
    (folder / "owner__calc/link").symlink_to("/etc/passwd")
    git(folder / "owner__calc", "add", "-A")
    git(folder / "owner__calc", "commit", "-qm", "link")
    with pytest.raises(ConfigError, match=r"the commit's tree holds a link \(link\)"):
        clones.tree("owner/calc", "HEAD")
    assert set(clones.tree("owner/calc", "HEAD~2")) == set(BASE), "an expression that git resolves will do"


def test_nothing_of_a_clone_acts(tmp_path: Path) -> None:
    folder = tmp_path / "clones/calc"
    attributes = b"*.py export-subst filter=evil\nsecret export-ignore\n"
    commit = clone(folder, {"calc/core.py": b"$Format:%H$\r\n", "secret": b"s", ".gitattributes": attributes})
    git(folder, "config", "filter.evil.smudge", f"touch {tmp_path}/acted; cat")
    before = sorted(path for path in folder.rglob("*"))
    tree = Checkouts(tmp_path / "clones").tree("owner/calc", commit)
    assert tree["calc/core.py"] == (b"$Format:%H$\r\n", False), "to the byte"
    assert "secret" in tree
    assert not (tmp_path / "acted").exists()
    assert sorted(path for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (read("swe_bench"), None),
        (read("swe_smith"), None),
        (read("r2e_gym"), "base and tests are in its container image alone"),
        (read("swe_rebench_2"), "it is written in c; the verifier runs pytest"),
        (read("swe_bench", FAIL_TO_PASS=["test_x (a.B)"]), "its tests are not named as pytest names them"),
        (read("swe_bench", PASS_TO_PASS=["tests/a.py"]), "its tests are not named as pytest names them"),
        (read("swe_bench", test_patch="Binary file t/x.png differs\n"), "a diff of it holds a binary file or a link"),
        (replace(read("swe_bench"), format="harbor"), "it is a task directory already"),
    ],
)
def test_why_a_row_cannot_be_run_here(row: TaskRow, reason: str | None) -> None:
    found = obstacle(row)
    assert (found is None) == (reason is None)
    assert found is None or (reason is not None and found[0].startswith(reason))
