"""Trees made to break whoever takes a patch from them: each is read to its end, and nothing of it is an error."""

import os
from pathlib import Path

import pytest
from calc_task import FIXED_CODE, change, patch_of, write_calc
from defense_pieces import settings

from engine.core.patch import apply_patch, difference, read_tree, render
from engine.core.records import Task
from engine.defense import patch_by_contents
from engine.defense.patch_by_contents import PatchByContents, make_patch
from engine.defense.test_edits_reverted import TestEditsReverted
from engine.sandbox import files

ME = files.Owner(uid=os.getuid(), gid=os.getgid())


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return write_calc(tmp_path)


@pytest.fixture
def box(task: Task, tmp_path: Path) -> Path:
    """A sandbox's root, with the agent's tree at `/t`."""
    root = tmp_path / "box"
    root.mkdir()
    files.upload(task.repository, root, "/t", ME)
    (root / "t/calc/__init__.py").write_bytes(FIXED_CODE)
    return root


def taken(task: Task, box: Path) -> tuple[str, ...]:
    tree = box.parent / "out"
    files.download(box, "/t", tree)
    return make_patch(task.repository, tree)[0].paths


def dig(folder: Path, depth: int) -> int:
    """A folder far below, as a descriptor: no path could name it."""
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 250, dir_fd=inner)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    return inner


def test_paths_that_are_longer_than_a_name_can_be_are_left_behind(task: Task, box: Path) -> None:
    deep = dig(box / "t", 60)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=deep))
    os.link("f", "g", src_dir_fd=deep, dst_dir_fd=deep)
    os.close(deep)
    assert taken(task, box) == ("calc/__init__.py",)


def test_more_names_of_a_file_than_the_host_allows(task: Task, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        os.link(box / "t/calc/__init__.py", box / "t" / name)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(31, "Too many links")

    monkeypatch.setattr(os, "link", refuse)
    assert taken(task, box) == ("a", "b", "c", "calc/__init__.py")


def test_names_that_would_make_lines_of_a_diff_are_refused(task: Task, box: Path) -> None:
    (box / "t/x\n+++ y").write_text("1\n")
    (box / "t/x\ry").write_text("1\n")
    assert taken(task, box) == ("calc/__init__.py",)


def test_a_file_of_the_base_that_no_patch_can_name_may_be_gone(task: Task, tmp_path: Path) -> None:
    odd = os.fsencode(task.repository) + b"/\xff.py"
    with open(odd, "wb") as file:  # noqa: PTH123
        file.write(b"1\n")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/new.py").write_text("1\n")
    patch, _ = make_patch(task.repository, tmp_path / "tree")
    assert "new.py" in patch.paths
    assert not any("\udcff" in path for path in patch.paths)


def test_new_contents_are_held_up_to_a_bound(task: Task, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_by_contents, "MAX_TAKEN_BYTES", 1 << 20)
    for number in range(3):
        (box / f"t/data{number}.txt").write_bytes(b"x" * (400 << 10))
        (box / f"t/zdata{number}.txt").write_bytes(b"x" * (400 << 10))
    patch, findings = make_patch(task.repository, box / "t")
    assert patch.paths == ("calc/__init__.py", "data0.txt", "data1.txt")
    assert [finding.paths for finding in findings] == [("data2.txt", "zdata0.txt", "zdata1.txt", "zdata2.txt")]


def test_a_fix_of_what_was_there_goes_last_and_empty_files_cost_as_well(task: Task, box: Path) -> None:
    bound = PatchByContents(mode="enforce", max_patch_kb=64)
    (box / "t/calc/__init__.py").write_bytes(FIXED_CODE + b"# why\n" * 9000)
    for number in range(40):
        (box / f"t/left{number:02}.txt").write_bytes(b"x" * 2000)
    kept, _ = bound.extract(task, box, make_patch(task.repository, box / "t")[0])
    assert "calc/__init__.py" in kept.paths
    for number in range(1000):
        (box / f"t/empty{number:04}").touch()
    kept, findings = bound.extract(task, box, make_patch(task.repository, box / "t")[0])
    assert "calc/__init__.py" in kept.paths
    assert len(kept.paths) < 60
    assert len(findings) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"a = " + b"[" * 20000,
        b"[" + b".".join([b"a"] * 20000) + b"]\n",
        b"[tool." + b".".join([b"pytest"] * 5000) + b"]",
    ],
)
def test_configuration_that_is_too_deep_to_be_read_is_no_error(task: Task, tmp_path: Path, text: bytes) -> None:
    defense = TestEditsReverted(**settings("TestEditsReverted"))
    for before in (None, b"[project]\n", text):
        defense.extract(task, tmp_path, patch_of(change("pyproject.toml", before, text + b"\n#\n")))


def test_a_diff_of_many_lines_is_no_work_without_end(tmp_path: Path) -> None:
    old = b"".join(b"l%d\n" % (number % 150) for number in range(12000))
    new = b"first\n" + old[3:-5] + b"last\n"
    shown = render(change("a.py", old, new))
    assert shown.startswith("--- a/a.py\n+++ b/a.py\n@@ -1,12000 +1,12000 @@\n")
    longer = render(change("a.py", old, old + b"more"))
    assert longer.splitlines()[2:] == ["@@ -12000,0 +12001,1 @@", "+more", "\\ No newline at end of file"]
    (tmp_path / "a.py").write_bytes(old)
    apply_patch(difference(read_tree(tmp_path), {"a.py": (new, False)}), tmp_path)
    assert (tmp_path / "a.py").read_bytes() == new
