"""Claims and leftovers: only what no living process holds is removed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.sandbox import rooms
from engine.sandbox.ledger import Session, left_rooms, reap, reap_sessions
from engine.sandbox.left import Left, note_left
from engine.sandbox.reentry import enter_left, names

CRASHING = """
import os, sys
from engine.sandbox.ledger import Session
from engine.sandbox.rooms import Record
room = Session(sys.argv[1]).room("trial 1/a")
room.note(Record(name="trial 1/a", runtime="bubblewrap", cgroups=(), container="", init=0, init_started=""))
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path))
    return tmp_path


def crash(owner: str) -> None:
    done = subprocess.run([sys.executable, "-c", CRASHING, owner], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def test_nothing_to_reap_is_fine() -> None:
    assert reap(None) == () == reap("anybody")


def test_a_stray_file_is_nobodys_session(cache: Path) -> None:
    crash("one")
    (folder,) = (path for path in (cache / "sandboxes").iterdir() if path.is_dir())
    (folder / "stray").write_text("")
    assert reap(None) == ("trial 1/a",)
    assert [path.name for path in folder.iterdir()] == ["stray"]


def test_a_dead_sessions_rooms_are_removed_by_owner_or_for_all(cache: Path) -> None:
    crash("one")
    crash("two")
    assert reap("three") == ()
    assert reap("one") == ("trial 1/a",)
    assert reap(None) == ("trial 1/a",)
    assert [path.name for path in (cache / "sandboxes").iterdir()] == [".lock"]


def test_a_living_session_is_left_alone_and_closes_clean(cache: Path) -> None:
    session = Session("one")
    room = session.room("trial")
    assert reap("one") == () == reap(None)
    rooms.dismantle(room.folder)
    session.close()
    session.close()
    assert [path.name for path in (cache / "sandboxes").iterdir()] == [".lock"]


def test_closing_a_session_removes_the_rooms_that_are_left(cache: Path) -> None:
    session = Session("one")
    session.room("left")
    session.close()
    assert [path.name for path in (cache / "sandboxes").iterdir()] == [".lock"]


def test_what_closing_could_not_remove_is_named_and_reaped_later(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session("one")
    session.room("left")

    def fail(folder: Path) -> None:
        raise SandboxError("cannot unmount it")

    with monkeypatch.context() as patch:
        patch.setattr("engine.sandbox.ledger.dismantle", fail)
        with pytest.raises(SandboxError, match="cannot unmount it"):
            session.close()
    assert len(reap("one")) == 1


def test_owners_with_alike_names_are_kept_apart() -> None:
    one, two = Session("a/b"), Session("a b")
    assert one.folder.parent != two.folder.parent
    one.close()
    two.close()


def test_what_cannot_be_removed_is_named_and_the_rest_goes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash("one")
    crash("two")
    dismantle = rooms.dismantle

    def fail_for_one(folder: Path) -> None:
        if folder.parents[1].name.startswith("one-"):
            raise SandboxError("cannot unmount it")
        dismantle(folder)

    monkeypatch.setattr("engine.sandbox.ledger.dismantle", fail_for_one)
    with pytest.raises(SandboxError, match="cannot unmount it"):
        reap(None)
    assert [path.name.split("-")[0] for path in (cache / "sandboxes").iterdir() if path.is_dir()] == ["one"]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_process_is_killed_only_if_it_is_the_recorded_one(recorded: bool) -> None:
    session = Session("one")
    room = session.room("trial")
    with subprocess.Popen(["sleep", "60"]) as process:
        start = rooms.started(process.pid) if recorded else "1"  # the number went to another process since
        room.note(
            rooms.Record(name="t", runtime="bubblewrap", cgroups=(), container="", init=process.pid, init_started=start)
        )
        rooms.dismantle(room.folder)
        if recorded:
            assert process.wait(timeout=60) == -9
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
            process.kill()
    session.close()


@pytest.mark.parametrize("left", ["", '{"name": "tri', "{}", "[]"])
def test_a_record_that_a_power_cut_took_keeps_no_start_from_reaping(cache: Path, left: str) -> None:
    crash("one")
    (record,) = (cache / "sandboxes").rglob("record.json")
    record.write_text(left)
    assert len(reap(None)) == 1
    assert [path.name for path in (cache / "sandboxes").iterdir()] == [".lock"]


def test_what_was_starting_a_sandbox_for_a_dead_process_is_ended_with_it(cache: Path) -> None:
    """Of bubblewrap alone, and of that session alone."""
    crash("one")
    (room,) = list(cache.glob("sandboxes/*/*/trial*"))

    def starter(program: str, folder: Path) -> "subprocess.Popen[bytes]":
        line = [program, "-c", "import time; time.sleep(60)", "--bind", f"{folder}/root"]
        made = subprocess.Popen(line, executable=sys.executable)
        while b"--bind" not in Path(f"/proc/{made.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        return made

    orphan = starter("/usr/bin/bwrap", room)
    others = [starter("/usr/bin/bwrap", room.parent.with_name("other")), starter("editor", room)]
    try:
        assert reap("one") == ("trial 1/a",)
        assert orphan.wait(timeout=10) == -9
        assert [other.poll() for other in others] == [None, None]
    finally:
        for process in (orphan, *others):
            process.kill()
            process.wait()


LEAVING = """
import sys
from engine.sandbox.ledger import Session
from engine.sandbox.left import Left, note_left
from engine.sandbox.rooms import Record
session = Session(sys.argv[1])
for name in ("left", "lost"):
    room = session.room(name)
    room.note(Record(name=name, runtime="bubblewrap", cgroups=(), container="", init=0, init_started=""))
    if name == "left":
        note_left(room, Left(name=room.folder.name, workdir="/w", environment={}, uid=1, disk_mb=0))
if sys.argv[2] == "close":
    session.close()
"""


@pytest.mark.parametrize("end", ["close", "die"])
def test_what_was_left_running_outlives_its_session_and_every_start_but_not_who_asks_for_it(end: str) -> None:
    subprocess.run([sys.executable, "-c", LEAVING, "one", end], check=True)
    (room,) = left_rooms()
    assert room.name.startswith("left-")
    assert reap("one") == (() if end == "close" else ("lost",))
    assert reap(None) == ()
    assert left_rooms() == [room]
    assert reap_sessions(None, left_too=True) == (["left"], [])
    assert left_rooms() == []


def test_nobody_enters_what_is_not_there_is_held_or_has_ended() -> None:
    with pytest.raises(SandboxError, match="no sandbox nobody was left running"), enter_left("nobody"):
        pass
    subprocess.run([sys.executable, "-c", LEAVING, "one", "close"], check=True)
    (name,) = names()
    with pytest.raises(SandboxError, match=f"sandbox {name} has ended"), enter_left(name):
        pass
    session = Session("two")
    room = session.room("mine")
    note_left(room, Left(name=room.folder.name, workdir="/w", environment={}, uid=1, disk_mb=0))
    with pytest.raises(SandboxError, match="is still its run's"), enter_left(room.folder.name):
        pass
    session.close()
    assert reap_sessions(None, left_too=True)[1] == []
