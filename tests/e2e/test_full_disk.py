"""A disk that is full stops a run with a clear line at any write; with room again the same command completes it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_runs import complete, directory, prepare, start, trained_again

from engine.store.layout import Layout
from engine.store.state import read_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root"),
]
SIZES_KB = (4, 60, 400, 2_000, 9_000, 20_000, 40_000)
"""Room for: nothing, the configuration, some trials, weights on their way, a checkpoint, two of them."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the runs."""
    prepare()
    root = tmp_path / "runs"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "lego-rl-test", str(root)], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_a_full_disk_at_any_write_is_told_and_the_same_command_completes(small: Path) -> None:
    log = small.parent / "log.txt"
    stopped = []
    for size in (*SIZES_KB, 400_000):
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small)], check=True)
        told = log.stat().st_size if log.exists() else 0
        code = start(small).wait(timeout=600)
        words = log.read_text()[told:]
        if code == 0:
            break
        last = words.strip().splitlines()[-1]
        assert code in (2, 3), words[-2000:]
        assert "No space left on device" in last, words[-2000:]
        assert "Traceback" not in words
        stopped.append(last)
        folder = directory(small)
        if folder is not None and (folder / "state.json").exists():
            read_state(Layout(root=folder))  # whole, if old
    assert code == 0
    assert len(stopped) >= 4, stopped
    trained_again(complete(small))
