"""Temporary folders go with their maker, or with the next one of their kind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.core.temporary import remove_abandoned, temporary_folder

MAKER = """
import os, sys
from engine.core.temporary import temporary_folder
with temporary_folder("kind") as folder:
    (folder / "tree").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_goes_with_its_maker(base: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_folder("kind") as folder:
        (folder / "file").write_text("")
        raise ZeroDivisionError
    assert list(base.iterdir()) == []


def test_a_living_makers_folder_stays_and_a_dead_ones_goes(base: Path) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert maker.stdout is not None
        theirs = Path(maker.stdout.readline().strip())
        with temporary_folder("kind") as mine:
            assert sorted(base.iterdir()) == sorted([mine, theirs])
    finally:
        maker.kill()
        maker.communicate()
    assert theirs.is_dir()
    with temporary_folder("other"):
        assert theirs.is_dir()
    with temporary_folder("kind") as mine:
        assert list(base.iterdir()) == [mine]


def test_below_another_folder_it_is_hidden_and_can_be_removed_without_a_new_one(base: Path) -> None:
    script = MAKER.replace(
        'temporary_folder("kind")', f'temporary_folder("kind", __import__("pathlib").Path("{base}/b"))'
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    theirs = Path(maker.stdout.readline().strip())
    assert theirs.parent == base / "b" and theirs.name.startswith(".lego-rl-kind-")
    assert remove_abandoned("*", base / "b") == []
    maker.kill()
    maker.communicate()
    assert remove_abandoned("*", base / "b") == [theirs]
    assert list((base / "b").iterdir()) == []


def test_a_removal_that_is_cut_short_is_finished_by_the_next(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), temporary_folder("kind") as folder:
        (folder / "tree").mkdir()
        patch.setattr("engine.core.temporary.shutil.rmtree", cut)
    assert (folder / ".lock").exists()
    assert remove_abandoned("kind") == [folder]


def test_what_a_thread_still_writes_is_left_to_the_next(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(folder: Path) -> None:
        (folder / "late").touch()
        raise OSError

    with monkeypatch.context() as patch, temporary_folder("kind") as folder:
        patch.setattr(Path, "rmdir", late)
    assert {entry.name for entry in folder.iterdir()} == {".lock", "late"}
    assert remove_abandoned("kind") == [folder] and list(base.iterdir()) == []


def test_one_that_was_killed_before_its_lock_goes_too(base: Path) -> None:
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    dead, living, older = (base / f"lego-rl-kind-{middle}x_y1" for middle in (f"{gone}-", f"{os.getpid()}-", ""))
    for folder in (dead, living, older):
        folder.mkdir()
    (dead / ".lock.draft").touch()
    assert remove_abandoned("*") == [dead]
    assert sorted(base.iterdir()) == sorted([living, older])
