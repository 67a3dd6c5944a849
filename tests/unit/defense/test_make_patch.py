"""The patch is what the contents of two trees say; whatever else an agent leaves is refused and noted."""

import os
import subprocess
from pathlib import Path

import pytest
from calc_task import FIXED_CODE, write_calc
from defense_pieces import as_acted

from engine.core.patch import apply_patch, read_tree
from engine.core.records import Finding, Patch, Task
from engine.defense.patch_by_contents import MAX_FILE_BYTES, PatchByContents, make_patch


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_calc(tmp_path)


@pytest.fixture
def tree(task: Task, tmp_path: Path) -> Path:
    """The agent's tree: a copy of the base."""
    target = tmp_path / "tree"
    apply_patch(Patch(changes=(), diff=""), task.repository)
    for path, (data, executable) in read_tree(task.repository).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)
        (target / path).chmod(0o755 if executable else 0o644)
    return target


def refused(findings: tuple[Finding, ...]) -> dict[str, tuple[str, ...]]:
    return {finding.detail.removeprefix("not taken into the patch: "): finding.paths for finding in findings}


def test_an_untouched_tree_is_an_empty_patch(task: Task, tree: Path) -> None:
    patch, findings = make_patch(task.repository, tree)
    assert (patch.changes, patch.diff, findings) == ((), "", ())


def test_changes_additions_and_deletions_are_taken(task: Task, tree: Path) -> None:
    (tree / "calc/__init__.py").write_bytes(FIXED_CODE)
    (tree / "new/deep.py").parent.mkdir()
    (tree / "new/deep.py").write_text("é = 1\n", encoding="utf-8")
    (tree / "new/deep.py").chmod(0o755)
    (tree / "bin/run").unlink()
    patch, findings = make_patch(task.repository, tree)
    assert [(change.path, change.after is None, change.executable) for change in patch.changes] == [
        ("bin/run", True, False),
        ("calc/__init__.py", False, False),
        ("new/deep.py", False, True),
    ]
    assert findings == ()
    assert "+    return a + b" in patch.diff


def test_python_by_products_are_dropped_without_a_word(task: Task, tree: Path) -> None:
    for path in ("calc/__pycache__/x.cpython-311.pyc", ".pytest_cache/v/x", "stray.pyc", ".git/HEAD", ".git/hooks/x"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(b"\0\1")
    assert make_patch(task.repository, tree) == (Patch(changes=(), diff=""), ())


def test_links_never_enter_and_what_they_hide_stays(task: Task, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/__init__.py").write_text("stolen")
    subprocess.run(["rm", "-r", str(tree / "calc")], check=True)
    (tree / "calc").symlink_to(tmp_path / "elsewhere")
    (tree / "passwd").symlink_to("/etc/passwd")
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == ()
    assert refused(findings) == {"a link": ("calc", "passwd")}


def test_special_files_and_hard_links_are_refused(task: Task, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "a").write_text("1")
    os.link(tree / "a", tree / "b")
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == ()
    assert refused(findings) == {"a special file": ("pipe",), "a file with several names": ("a", "b")}


@pytest.mark.parametrize("data", [b"\x89PNG\0", b"\xff\xfe1", b"text\0"])
def test_binary_contents_are_refused_and_the_base_stays(task: Task, tree: Path, data: bytes) -> None:
    (tree / "calc/__init__.py").write_bytes(data)
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == ()
    assert refused(findings) == {"not text": ("calc/__init__.py",)}


def test_a_text_of_the_base_in_another_encoding_may_be_changed(task: Task, tree: Path) -> None:
    latin = "# coding: latin-1\nname = 'Käthe'\n".encode("latin-1")
    for root in (task.repository, tree):
        (root / "names.py").write_bytes(latin)
    (tree / "names.py").write_bytes(latin + b"age = 7\n")
    patch, findings = make_patch(task.repository, tree)
    assert [(change.path, change.after) for change in patch.changes] == [("names.py", latin + b"age = 7\n")]
    assert findings == ()
    (tree / "names.py").write_bytes(latin + b"\0")
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == () and refused(findings) == {"not text": ("names.py",)}


def test_oversized_files_are_refused(task: Task, tree: Path) -> None:
    with (tree / "log").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == ()
    assert list(refused(findings)) == ["over 4 MiB"]


def test_git_folders_below_and_names_that_are_not_utf8_are_refused(task: Task, tree: Path) -> None:
    (tree / "sub/.git/hooks").mkdir(parents=True)
    (tree / "sub/.git/hooks/pre-commit").write_text("evil")
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff.py")).write_text("1")
    patch, findings = make_patch(task.repository, tree)
    assert patch.changes == ()
    assert refused(findings) == {"a name that a patch may not hold": ("sub/.git/hooks/pre-commit", "\\udcff.py")}


def test_binary_files_of_the_base_are_no_change(task: Task, tree: Path) -> None:
    for root in (task.repository, tree):
        (root / "logo.png").write_bytes(b"\x89PNG\0")
    assert make_patch(task.repository, tree)[0].changes == ()


def test_gits_own_tricks_hide_nothing(task: Task, tree: Path) -> None:
    """skip-worktree, .gitignore and an emptied index do not matter: git is not asked."""
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    subprocess.run([*git, "update-index", "--skip-worktree", "calc/__init__.py"], check=True)
    (tree / ".git/info/exclude").write_text("*\n")
    (tree / "calc/__init__.py").write_bytes(FIXED_CODE)
    (tree / "hidden.py").write_text("1\n")
    assert make_patch(task.repository, tree)[0].paths == ("calc/__init__.py", "hidden.py")


def test_what_is_over_the_bound_goes_largest_first(task: Task, tree: Path) -> None:
    (tree / "calc/__init__.py").write_bytes(FIXED_CODE)
    (tree / "data.txt").write_text("x" * 3000)
    (tree / "more.txt").write_text("x" * 2000)
    patch, _ = make_patch(task.repository, tree)
    kept, findings = PatchByContents(mode="enforce", max_patch_kb=1).extract(task, tree, patch)
    assert kept.paths == ("calc/__init__.py",)
    assert findings[0].paths == ("data.txt", "more.txt")
    noted, same = PatchByContents(mode="observe", max_patch_kb=1).extract(task, tree, patch)
    assert noted == patch
    assert as_acted(same) == list(findings)
    assert PatchByContents(mode="enforce", max_patch_kb=100).extract(task, tree, patch) == (patch, ())


def test_history_that_was_left_to_the_agent_is_no_change(task: Task, tree: Path) -> None:
    for root in (task.repository, tree):
        (root / ".git.orig").mkdir()
        (root / ".git.orig/HEAD").write_text("ref: refs/heads/main\n")
        (root / ".git.orig/index").write_bytes(b"DIRC\0")
    assert make_patch(task.repository, tree) == (Patch(changes=(), diff=""), ())
