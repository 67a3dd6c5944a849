"""Patches by contents: what is made from two trees turns one into the other, or nothing is touched."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import PatchError
from engine.core.patch import apply_patch, difference, make, read_tree, safe_path, under, without
from engine.core.records import FileChange

NAMES = st.sampled_from(["a", "b.py", "d/a", "d/e/f.txt", "g"])
TREES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=20), st.booleans()), max_size=5)


def write(tree: dict[str, tuple[bytes, bool]], root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for path, (data, executable) in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        (root / path).chmod(0o755 if executable else 0o644)
    return root


@given(before=TREES, after=TREES)
def test_a_patch_turns_one_tree_into_the_other(tmp_path_factory: pytest.TempPathFactory, before, after) -> None:
    root = write(before, tmp_path_factory.mktemp("tree"))
    apply_patch(difference(before, after), root)
    assert {path: held[0] for path, held in read_tree(root).items()} == {path: held[0] for path, held in after.items()}


def test_a_file_may_become_a_folder_and_back(tmp_path: Path) -> None:
    module, package = {"m": (b"1", False)}, {"m/a": (b"2", False), "m/b": (b"3", False)}
    root = write(module, tmp_path / "r")
    apply_patch(difference(module, package), root)
    assert read_tree(root) == package
    apply_patch(difference(package, module), root)
    assert read_tree(root) == module


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", ".git/config", "a/.GIT/hooks/x", "a//b", "a\0b"]
)
def test_paths_that_leave_the_repository_are_refused(path: str) -> None:
    with pytest.raises(PatchError):
        safe_path(path)


def test_names_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(PatchError, match="UTF-8"):
        safe_path(b"\xff".decode(errors="surrogateescape"))


def test_a_tree_that_differs_from_the_patch_is_left_alone(tmp_path: Path) -> None:
    root = write({"a": (b"other", False), "b": (b"1", False)}, tmp_path / "r")
    patch = difference({"a": (b"1", False), "b": (b"1", False)}, {"a": (b"2", False)})
    with pytest.raises(PatchError, match="a: the tree does not hold"):
        apply_patch(patch, root)
    assert read_tree(root) == {"a": (b"other", False), "b": (b"1", False)}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root = write({}, tmp_path / "r")
    (root / "d").symlink_to(tmp_path / "outside")
    patch = make([FileChange(path="d/x", before=None, after=b"1")])
    with pytest.raises(PatchError, match="link"):
        apply_patch(patch, root)
    assert not list((tmp_path / "outside").iterdir())


def test_a_link_in_a_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("x")
    with pytest.raises(PatchError, match="not a regular file"):
        read_tree(tmp_path)


def test_the_diff_is_what_people_know(tmp_path: Path) -> None:
    patch = difference(
        {"a": (b"1\n2\n", False), "gone": (b"x", False)}, {"a": (b"1\n3\n", False), "bin": (b"\xff\0", False)}
    )
    assert "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n" in patch.diff
    assert "Binary file bin differs\n" in patch.diff
    assert "--- a/gone\n+++ /dev/null\n" in patch.diff
    assert "\\ No newline at end of file\n" in patch.diff


def test_without_drops_changes_and_their_diff() -> None:
    patch = difference({}, {"a": (b"1\n", False), "b": (b"2\n", False)})
    rest = without(patch, ["a"])
    assert rest.paths == ("b",)
    assert "b/a" not in rest.diff


@pytest.mark.parametrize(
    ("path", "roots", "inside"),
    [("tests/a", ["tests"], True), ("tests", ["tests"], True), ("tests2/a", ["tests"], False), ("a", ["."], True)],
)
def test_under(path: str, roots: list[str], inside: bool) -> None:
    assert under(path, roots) is inside
