"""Drafts of killed writers go, whole files and everything else stays."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from power_cut import Disk, present

from engine.core.errors import RunError
from engine.core.whole import (
    append_lines,
    draft_of,
    make_folder,
    move_into_place,
    remove_drafts,
    replace_folder,
    write_whole,
    writing_whole,
)


def test_drafts_go_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "step=0/trial.parquet", b"whole")
    file, folder = draft_of(tmp_path / "step=0/trial.parquet"), draft_of(tmp_path / "version=1")
    file.write_bytes(b"half")
    (folder / "inner").mkdir(parents=True)
    others = [tmp_path / name for name in (".hidden", ".x.draft-", ".notes.draft-of-mine", "x.draft-0123abcd")]
    for other in others:
        other.touch()
    assert sorted(remove_drafts(tmp_path)) == sorted([file, folder])
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "step=0"])
    assert (tmp_path / "step=0/trial.parquet").read_bytes() == b"whole"
    assert remove_drafts(tmp_path / "missing") == []


def test_young_drafts_may_be_spared(tmp_path: Path) -> None:
    old, young = draft_of(tmp_path / "old"), draft_of(tmp_path / "young")
    old.touch()
    young.touch()
    os.utime(old, (time.time() - 700,) * 2)
    assert remove_drafts(tmp_path, 600) == [old]


def test_what_is_written_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    write_whole(tmp_path / "trajectories/step=0/trial.parquet", b"one")
    assert disk.left() == {"trajectories/step=0/trial.parquet": b"one"}
    write_whole(tmp_path / "trajectories/step=0/trial.parquet", b"two")
    append_lines(tmp_path / "ledger/step=0.jsonl", "pending\n")
    append_lines(tmp_path / "ledger/step=0.jsonl", "running\n")
    assert disk.left() == present(tmp_path)
    assert disk.left()["ledger/step=0.jsonl"] == b"pending\nrunning\n"


@pytest.mark.parametrize("move", [replace_folder, move_into_place])
def test_a_folder_of_other_hands_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: Callable[[Path, Path], None]
) -> None:
    disk = Disk(tmp_path, monkeypatch)
    make_folder(tmp_path / "a/b")
    draft = draft_of(tmp_path / "a/b/whole")
    (draft / "inner").mkdir(parents=True)
    (draft / "inner/file").write_bytes(b"inner")
    (draft / "file").write_bytes(b"file")
    (draft / "link").symlink_to("file")
    move(draft, tmp_path / "a/b/whole")
    left = disk.left()
    assert (left["a/b/whole/file"], left["a/b/whole/inner/file"]) == (b"file", b"inner")


def test_the_older_folder_goes_when_the_new_one_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    seen: list[bytes] = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: seen.append(disk.left()["v1/weights"]))
    for text in (b"old", b"new"):
        draft = draft_of(tmp_path / "v1")
        draft.mkdir()
        (draft / "weights").write_bytes(text)
        replace_folder(draft, tmp_path / "v1")
    assert seen == [b"old", b"new"]


def test_a_file_system_that_keeps_names_by_itself_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", sync)
    error = errno.EINVAL
    write_whole(tmp_path / "file", b"whole")
    error = errno.EIO
    with pytest.raises(RunError, match=r"file cannot be written: Input/output error"):
        write_whole(tmp_path / "file", b"whole")


def test_what_is_written_piece_by_piece_appears_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep/table"
    with writing_whole(path) as stream:
        stream.write(b"one ")
        stream.write(b"two")
        assert not path.exists()
    assert path.read_bytes() == b"one two"
    with pytest.raises(ValueError, match="no more"), writing_whole(path) as stream:
        stream.write(b"three")
        raise ValueError("no more")
    assert path.read_bytes() == b"one two"
    assert [entry.name for entry in path.parent.iterdir()] == ["table"], "no draft is left"
