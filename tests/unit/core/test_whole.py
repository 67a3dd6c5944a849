"""Drafts of killed writers go, whole files and everything else stays."""

import os
import time
from pathlib import Path

from engine.core.whole import draft_of, remove_drafts, write_whole


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
