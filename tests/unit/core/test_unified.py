"""Unified diffs: what git and this project write is read whole, turned round and applied, or refused by its line."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import PatchError
from engine.core.patch import difference
from engine.core.unified import applied, parse, render, reverse

NAMES = st.sampled_from(["a", "b.py", "d/a b", "d/e/é.txt", "g"])
LINES = st.sampled_from(["", "x", "y ", "\tz", "--- a/q", "+++ b/q", "@@ -1 +1 @@", "\\ No newline", "é\x0cü", "r\r"])
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=8), st.sampled_from(["", "\n"]))
TREES = st.dictionaries(NAMES, st.tuples(TEXTS.map(str.encode), st.just(False)), max_size=4)
HEAD = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n"


def contents(tree: dict[str, tuple[bytes, bool]]) -> dict[str, bytes]:
    return {path: held[0] for path, held in tree.items()}


def after(files: tuple, tree: dict[str, tuple[bytes, bool]]) -> dict[str, bytes]:
    """What the tree holds after a diff."""
    made = contents(tree)
    for change in applied(files, tree).changes:
        if change.after is None:
            del made[change.path]
        else:
            made[change.path] = change.after
    return made


@given(before=TREES, then=TREES)
def test_this_projects_own_diff_is_the_patch_again(before, then) -> None:
    patch = difference(before, then)
    if not patch.changes:
        return
    files = parse(patch.diff)
    assert applied(files, before).changes == patch.changes
    assert after(reverse(files), then) == contents(before)
    assert parse(render(files)) == files
    assert reverse(reverse(files)) == files


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, check=True, text=True)
    return done.stdout


def test_what_git_writes_of_renames_modes_and_odd_names_is_read_and_written(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    lines = "".join(f"line {number}\n" for number in range(30))
    before = {"old name.py": lines, "gone.py": "x\n", 'q"u\te.txt': "a\n", "é.txt": "a\n", "run": "#!\n", "empty": ""}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "base")
    (tmp_path / "old name.py").rename(tmp_path / "new name.py")
    (tmp_path / "new name.py").write_text(lines.replace("line 7\n", "line seven\n"))
    (tmp_path / "gone.py").unlink()
    (tmp_path / 'q"u\te.txt').write_text("b\n")
    (tmp_path / "é.txt").write_text("b")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "empty").unlink()
    (tmp_path / "fresh").write_text("")
    git(tmp_path, "add", "-A")
    text = git(tmp_path, "diff", "--cached", "-M")
    files = parse(text)
    tree = {name: (content.encode(), False) for name, content in before.items()}
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after(files, tree) == made
    assert ("old name.py", "new name.py") in [(file.old, file.new) for file in files]
    assert parse(render(files)) == files
    (tmp_path / "again.diff").write_text(render(reverse(files)))
    git(tmp_path, "apply", "--index", "again.diff")
    assert git(tmp_path, "status", "--porcelain", "-uno") == "", "git itself undoes it with what is rendered"


def test_a_reverse_lists_what_goes_before_what_comes() -> None:
    files = parse(HEAD + "@@ -1,3 +1,4 @@\n a\n-b\n+c\n+d\n e\n")
    assert render(reverse(files)).splitlines()[3:] == ["@@ -1,4 +1,3 @@", " a", "-c", "-d", "+b", " e"]


def test_a_missing_line_feed_at_the_end_is_kept_on_either_side() -> None:
    text = HEAD + "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"
    files = parse(text)
    assert files[0].hunks[0].lines == (("-", "a"), ("+", "a\n"))
    assert after(files, {"m.py": (b"a", False)}) == {"m.py": b"a\n"}
    assert after(reverse(files), {"m.py": (b"a\n", False)}) == {"m.py": b"a"}


def test_a_blank_line_whose_mark_an_editor_dropped_is_context() -> None:
    files = parse(HEAD + "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n")
    assert after(files, {"m.py": (b"a\n\nb\n", False)}) == {"m.py": b"a\n\nc\n"}


def test_line_feeds_alone_end_lines() -> None:
    files = parse(HEAD + "@@ -1,2 +1,2 @@\n a\x0cb\u2028c\n-d\r\n+e\r\n")
    tree = {"m.py": ("a\x0cb\u2028c\nd\r\n".encode(), False)}
    assert after(files, tree) == {"m.py": "a\x0cb\u2028c\ne\r\n".encode()}


def test_a_diff_without_gits_header_or_with_time_stamps_is_read() -> None:
    text = "--- a/m.py\t2020-01-01 00:00:00\n+++ b/m.py\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    (file,) = parse(text)
    assert (file.old, file.new) == ("m.py", "m.py")


def test_an_executable_stays_executable_and_may_become_one() -> None:
    tree = {"run": (b"a\n", True), "m.py": (b"a\n", False)}
    text = "--- a/run\n+++ b/run\n@@ -1 +1 @@\n-a\n+b\n" + HEAD.replace(
        "--- a", "old mode 100644\nnew mode 100755\n--- a"
    )
    patch = applied(parse(text + "@@ -1 +1 @@\n-a\n+b\n"), tree)
    assert [(change.path, change.executable) for change in patch.changes] == [("m.py", True), ("run", True)]


def test_files_may_change_places_and_be_copied() -> None:
    names = (("a", "b", "rename"), ("b", "a", "rename"), ("a", "c", "copy"))
    text = "".join(f"diff --git a/{old} b/{new}\n{word} from {old}\n{word} to {new}\n" for old, new, word in names)
    tree = {"a": (b"1", False), "b": (b"2", True)}
    files = parse(text)
    assert after(files, tree) == {"a": b"2", "b": b"1", "c": b"1"}
    assert after(reverse(files[:2]), tree) == {"a": b"2", "b": b"1"}
    with pytest.raises(PatchError, match=r"^c: a copied file cannot be turned round"):
        reverse(files)
    with pytest.raises(PatchError, match=r"^c: is to be new, and is there already"):
        applied(files, {**tree, "c": (b"3", False)})


def test_binary_files_and_links_are_read_and_not_applied() -> None:
    binary = "diff --git a/x.png b/x.png\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZ?wbhEHb\n\n"
    binary += "literal 0\nHcmV?d00001\n\n"
    link = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+t\n"
    link += "\\ No newline at end of file\n"
    other = "diff --git a/y.png b/y.png\nnew file mode 100644\nBinary files /dev/null and b/y.png differ\n"
    files = parse(binary + link + other + HEAD + "@@ -1 +1 @@\n-a\n+b\n")
    assert [(file.path, file.plain) for file in files] == [
        ("x.png", False),
        ("l", False),
        ("y.png", False),
        ("m.py", True),
    ]
    assert parse(render(files)) == files
    for file in files[:3]:
        with pytest.raises(PatchError, match=f"^{file.path}: a binary file or a link cannot be made of a diff"):
            applied([file], {"x.png": (b"", False)})
    with pytest.raises(PatchError, match=r"^x.png: a binary file cannot be turned round"):
        reverse(files)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "^it holds no file"),
        ("\n\n", "^it holds no file"),
        ("From: me\n", "^line 1: 'From: me' belongs to no file$"),
        (HEAD + "@@ -1,3 +1,2 @@\n a\n-b\n", "^line 6: the diff ends within a hunk, 1 old and 1 new lines are missing"),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n+c\n", r"^line 7: '\+c' belongs to no file \(the hunk above says"),
        (HEAD + "@@ -1,2 +1 @@\n a\n+b\n-c\n", "^line 6: the hunk has more lines than its head says"),
        (HEAD + "@@ -1,2 +1,2 @@\n a\nb\n", "^line 6: 'b' is no line of a hunk, 1 old and 1 new are missing"),
        (HEAD + "@@ one @@\n", "^line 4: is no head of a hunk"),
        ("--- a/m.py\n@@ -1 +1 @@\n-a\n+b\n", r"^line 1: no line with `\+\+\+ ` follows"),
        ("--- /dev/null\n+++ /dev/null\n", "^line 2: the file is on neither side"),
        ("--- m.py\n+++ m.py\n", "^line 1: the path 'm.py' has no a/ or b/ before it"),
        ("--- a/../m.py\n+++ b/../m.py\n", "^line 1: patch path '../m.py' leaves the repository"),
        ("diff --git a/.git/config b/.git/config\nold mode 100644\nnew mode 100755\n", "lies in a .git folder"),
        (HEAD.replace("--- a/m", "--- a/n"), "^line 2: the header calls this file 'm.py'"),
        (HEAD.replace("+++ b/m", "+++ b/n"), "^line 3: the header calls this file 'm.py'"),
    ],
)
def test_what_is_no_diff_is_refused_by_its_line(text: str, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "@@ -1 +1 @@\n-b\n+c\n", "^m.py: does not hold the lines of the hunk at line 1"),
        (HEAD + "@@ -2 +2 @@\n-a\n+c\n", "^m.py: does not hold the lines of the hunk at line 2"),
        (HEAD + "@@ -3 +3 @@\n-z\n+c\n@@ -1 +1 @@\n-a\n+c\n", "^m.py: does not hold the lines of the hunk at line 1"),
        (HEAD.replace("m.py", "n.py") + "@@ -1 +1 @@\n-a\n+c\n", "^n.py: is not in the tree"),
        ("--- /dev/null\n+++ b/m.py\n@@ -0,0 +1 @@\n+a\n", "^m.py: is to be new, and is there already"),
        ("--- a/m.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "^m.py: is to be deleted, and 2 lines of it would be left"),
        ((HEAD + "@@ -1 +1 @@\n-a\n+c\n") * 2, "^m.py: the diff changes it twice"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        applied(parse(text), {"m.py": (b"a\nb\nz\n", False)})
