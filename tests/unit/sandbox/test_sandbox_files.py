"""Copying between host and sandbox: what is refused, what is left behind, what stays as it was."""

import os
from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.sandbox import files

ME = files.Owner(uid=os.getuid(), gid=os.getgid())


@pytest.mark.parametrize("path", ["relative", "/a/../b", "", "/a\0b"])
def test_only_absolute_paths_without_dots(path: str) -> None:
    with pytest.raises(SandboxError):
        files.parts(path)


def test_redundant_slashes_and_dots_are_nothing() -> None:
    assert files.parts("//a/./b//") == ("a", "b")
    assert files.parts("/") == ()


def test_a_written_file_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    root.mkdir()
    victim.write_text("untouched")
    (root / "config").symlink_to(victim)
    files.write(root, {"/config": b"new"}, ME)
    assert victim.read_text() == "untouched"
    assert not (root / "config").is_symlink() and (root / "config").read_bytes() == b"new"


def test_a_written_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SandboxError, match="/folder"):
        files.write(tmp_path, {"/folder": b"x"}, ME)


def test_reading_stops_at_the_limit_and_at_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    assert files.read(tmp_path, "/file", 4) == b"0123"
    assert files.read(tmp_path, "/file", 100) == b"0123456789"
    for path in ("/", "/folder", "/pipe", "/link", "/none", "/file/below"):
        assert files.read(tmp_path, path, 100) is None


def test_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    files.read(tmp_path, "/folder", 1)
    files.read(tmp_path, "/folder/none/none", 1)
    with pytest.raises(SandboxError):
        files.download(tmp_path, "/none", tmp_path / "copy")
    files.download(tmp_path, "/folder", tmp_path / "copy")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before, "fewer is the collector's doing"


def test_uploading_merges_and_keeps_modes_and_times(tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    (source / "package").mkdir(parents=True)
    (source / "package/new.py").write_text("new")
    (source / "package/new.py").chmod(0o750)
    os.utime(source / "package/new.py", ns=(10**18, 10**18))
    (root / "work/package").mkdir(parents=True)
    (root / "work/package/old.py").write_text("old")
    (root / "work/package/new.py").write_text("replaced")
    files.upload(source, root, "/work", ME)
    copied = root / "work/package/new.py"
    assert copied.read_text() == "new" and (root / "work/package/old.py").read_text() == "old"
    assert copied.stat().st_mode & 0o777 == 0o750 and copied.stat().st_mtime_ns == 10**18


def test_uploading_special_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    os.mkfifo(tmp_path / "source/pipe")
    with pytest.raises(SandboxError, match="pipe"):
        files.upload(tmp_path / "source", tmp_path, "/target", ME)


def test_downloading_leaves_special_files_and_set_user_bits_behind(tmp_path: Path) -> None:
    source = tmp_path / "root/work"
    source.mkdir(parents=True)
    os.mkfifo(source / "pipe")
    (source / "tool").write_text("tool")
    (source / "tool").chmod(0o4755)
    files.download(tmp_path / "root", "/work", tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["tool"]
    assert (tmp_path / "copy/tool").stat().st_mode & 0o7777 == 0o755


def test_downloading_over_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root/work").mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    with pytest.raises(SandboxError, match="exists"):
        files.download(tmp_path / "root", "/work", tmp_path / "copy")


def test_holes_and_names_of_one_file_cost_nothing(tmp_path: Path) -> None:
    source = tmp_path / "root/work"
    (source / "inner").mkdir(parents=True)
    with (source / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"end")
    os.link(source / "sparse", source / "inner/again")
    files.download(tmp_path / "root", "/work", tmp_path / "copy")
    status = (tmp_path / "copy/sparse").stat()
    assert status.st_size == (1 << 30) + 3 and status.st_blocks < 1000
    assert (tmp_path / "copy/inner/again").stat().st_ino == status.st_ino
    with (tmp_path / "copy/sparse").open("rb") as file:
        assert file.read(5) == b"begin"
        file.seek(1 << 30)
        assert file.read() == b"end"
