"""`job=reap` removes what dead processes left and nothing that lives."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core import temporary
from engine.core.errors import RunError, SandboxError
from engine.core.whole import draft_of
from engine.run.jobs import reap
from engine.run.jobs.reap import ReapJob
from engine.store.claim import claim
from engine.store.layout import Layout

DIES = """
import os, sys
from pathlib import Path
from engine.core.temporary import temporary_folder
from engine.sandbox.ledger import Session
places = [None, *map(Path, sys.argv[1:])]
folders = [temporary_folder("kind", below) for below in places]
for folder in folders:
    print(folder.__enter__())
session = Session("owner")
(session.room("lost").folder / "file").write_text("")
sys.stdout.flush()
os._exit(9)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def a_run(root: Path, name: str) -> Layout:
    layout = Layout(root=root / name)
    layout.scratch.mkdir(parents=True)
    layout.lock.touch()
    return layout


def left_by_a_dead_process(*below: Path) -> list[str]:
    command = [sys.executable, "-c", DIES, *map(str, below)]
    died = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert died.returncode == 9
    return died.stdout.split()


async def test_what_is_dead_goes_and_what_lives_stays(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = left_by_a_dead_process(*(cache / name for name in ("disks", "images", "models", "sdists", "tasks")))
    dead, living = a_run(tmp_path / "runs", "dead"), a_run(tmp_path / "runs", "living")
    half, others = draft_of(dead.state), draft_of(living.state)
    old, young = draft_of(cache / "proven/old.txt"), draft_of(cache / "proven/young.txt")
    old.parent.mkdir()
    for draft in (half, others, old, young):
        draft.touch()
    os.utime(old, (0, 0))
    built: Any = SimpleNamespace(sandbox=None, directory=tmp_path / "runs/mine")
    with claim(living):
        assert await ReapJob(kept="remove").run(built) == 0
    told = capsys.readouterr().out
    for folder in (*left, str(dead.scratch), half, old):
        assert f"removed {folder}\n" in told
        assert not Path(folder).exists()
    assert "removed sandbox " in told
    assert living.scratch.is_dir() and others.exists() and young.exists()
    assert await ReapJob(kept="remove").run(built) == 0
    assert capsys.readouterr().out == f"removed {others}\nremoved {living.scratch}\n"
    assert await ReapJob(kept="remove").run(built) == 0
    assert capsys.readouterr().out == "nothing was left behind\n"


async def test_what_cannot_be_removed_is_named_at_the_end_and_stops_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *left, stays = left_by_a_dead_process(cache / "disks", cache / "images")
    first, locked, dead = (a_run(tmp_path / "runs", name) for name in ("a", "b", "c"))

    @contextlib.contextmanager
    def some(layout: Layout) -> Iterator[str]:
        if layout == locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(layout.lock))
        with claim(layout) as holder:
            yield holder

    def stuck(folder: Path) -> None:
        raise SandboxError("lost is busy")

    remove = temporary._remove

    def unless(folder: Path) -> None:
        if str(folder) == stays:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(folder))
        remove(folder)

    monkeypatch.setattr(reap.ledger, "dismantle", stuck)
    monkeypatch.setattr(reap, "claim", some)
    monkeypatch.setattr(temporary, "_remove", unless)
    built: Any = SimpleNamespace(sandbox=None, directory=tmp_path / "runs/mine")
    with pytest.raises(RunError) as raised:
        await ReapJob(kept="remove").run(built)
    assert raised.value.exit_code == 3
    assert str(raised.value) == (
        f"not removed: lost is busy; {stays} (Operation not permitted); "
        f"{locked.lock} (Permission denied); remove these by hand, or as a user who may"
    )
    told = capsys.readouterr().out
    for folder in (*left, str(first.scratch), str(dead.scratch)):
        assert f"removed {folder}\n" in told
    assert "nothing was left" not in told


async def test_a_session_that_cannot_be_claimed_keeps_no_other_sandbox_from_going(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left_by_a_dead_process()
    (session,) = (cache / "sandboxes").glob("*/*")
    other = session.with_name("other")
    (other / "lock").mkdir(parents=True)  # as good as one that may not be opened
    built: Any = SimpleNamespace(sandbox=None, directory=tmp_path / "runs/mine")
    with pytest.raises(RunError, match=f"{other} "):
        await ReapJob(kept="remove").run(built)
    assert "removed sandbox " in capsys.readouterr().out
    assert not session.exists()


async def test_what_stays_in_a_folder_is_not_said_to_be_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = a_run(tmp_path / "runs", "dead")
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None)
    built: Any = SimpleNamespace(sandbox=None, directory=tmp_path / "runs/mine")
    with pytest.raises(RunError, match=f"{dead.scratch} \\(something in it stays\\)"):
        await ReapJob(kept="remove").run(built)
    assert "removed" not in capsys.readouterr().out


class ElsewhereRuntime:
    """As much of a runtime as is asked: its sandboxes lie on other machines."""

    capabilities = None

    def __init__(self, names: list[str], problems: list[str]) -> None:
        self._answer = names, problems

    async def reap(self) -> tuple[list[str], list[str]]:
        return self._answer

    problems = prepare = start = create = stop = reap


async def test_what_lies_on_other_machines_is_removed_by_its_runtime(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built: Any = SimpleNamespace(sandbox=ElsewhereRuntime(["far"], []), directory=tmp_path / "runs/mine")
    assert await ReapJob(kept="remove").run(built) == 0
    assert capsys.readouterr().out == "removed sandbox far\n"
    built.sandbox = ElsewhereRuntime(["far"], ["pod near is not gone yet"])
    with pytest.raises(RunError, match="not removed: pod near is not gone yet"):
        await ReapJob(kept="remove").run(built)
    assert capsys.readouterr().out == "removed sandbox far\n"
