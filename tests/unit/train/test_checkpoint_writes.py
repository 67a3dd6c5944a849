"""A checkpoint that the disk does not take is a clear stop, and the one before it stays."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from power_cut import Disk, present

from engine.core.errors import RunError
from engine.train import checkpoint


def save(directory: Path, value: float) -> None:
    checkpoint.save_state(directory, {"w": torch.full((3,), value)}, {"seen": 1}, {"dtype": "float32"})


@pytest.mark.parametrize(
    ("free", "reason"), [(0, "No space left on device"), (1 << 30, "unexpected pos 12736 vs 12628")]
)
def test_torchs_words_about_a_full_disk_become_the_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, reason: str
) -> None:
    directory = tmp_path / "checkpoints/version=000001"
    save(directory, 1.0)

    def broken(*_: Any) -> None:
        raise RuntimeError("unexpected pos\n12736 vs 12628")

    monkeypatch.setattr(checkpoint.torch, "save", broken)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(RunError, match=f"version=000001 cannot be written: {reason}; once it can, the same command"):
        save(directory, 2.0)
    weights = {"w": torch.zeros(3)}
    checkpoint.load_state(directory, weights, {"dtype": "float32"})
    assert weights["w"].tolist() == [1.0] * 3
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_a_folder_that_cannot_be_made_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/version=000001 cannot be written: .*; once it can"):
        save(tmp_path / "file/version=000001", 1.0)


def test_a_saved_checkpoint_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    for value in (1.0, 2.0):  # the second one replaces the first
        save(tmp_path / "checkpoints/version=000001", value)
        left = {path: data for path, data in disk.left().items() if ".draft-" not in path}  # removed at the next start
        assert left == present(tmp_path)
    assert len(left) == 3
