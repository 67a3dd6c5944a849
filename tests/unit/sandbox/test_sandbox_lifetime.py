"""How long a sandbox may live: what is over its time goes though its owner lives, and nothing else."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_sandbox_ledger import LEAVING

from engine.core.specs import ImageSpec, SandboxSpec
from engine.sandbox import lifetime
from engine.sandbox.ledger import Session, left_rooms, reap, reap_sessions, remains
from engine.sandbox.left import Left, note_left, read_left
from engine.sandbox.lifetime import OWNERS_S, Allowance, words
from engine.sandbox.rooms import Record, Room, read_record

SPEC = SandboxSpec(
    name="trial",
    image=ImageSpec(name="task", suite=None, packages=(), pip=()),
    mounts=(),
    workdir="/testbed",
    environment={},
    memory_mb=1,
    cpus=1.0,
    pids=1,
    disk_mb=1,
    work_s=900.0,
)
RECORD = Record(name="trial", runtime="bubblewrap", cgroups=(), container="", init=0, init_started="")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path))
    return tmp_path


def test_a_sandbox_lives_for_its_work_and_a_grace_and_a_persons_for_as_long_as_one_keeps_it() -> None:
    allowance = Allowance(grace_s=600.0, keep_s=86400.0)
    assert allowance.life_s(SPEC) == 1500.0
    assert allowance.life_s(replace(SPEC, lasting=True)) == 86400.0
    assert allowance.life_s(replace(SPEC, work_s=None)) == 86400.0


def held(session: Session, name: str, **changes: object) -> Room:
    room = session.room(name)
    room.note(replace(RECORD, name=name, **changes))  # type: ignore[arg-type]
    return room


def test_what_is_over_its_time_goes_though_its_owner_lives_and_all_else_stays() -> None:
    session, now, boot = Session("one"), lifetime.clock(), lifetime.boot()
    over = held(session, "over", ends_s=now - OWNERS_S - 1, boot=boot)
    stays = [
        held(session, "within", ends_s=now + 600, boot=boot),
        held(session, "its owner's turn", ends_s=now - OWNERS_S / 2, boot=boot),
        held(session, "of another boot", ends_s=now - 1e6, boot="another"),
        held(session, "of an older version"),
        session.room("no record yet"),
    ]
    assert reap("one") == ("over (over its time, and its owner, who lives, did not end it)",)
    assert not over.folder.exists()
    assert all(room.folder.exists() for room in stays)
    assert reap(None) == ()
    session.close()


def test_a_record_of_an_older_version_is_still_read() -> None:
    session = Session("one")
    room = held(session, "old")
    file = room.folder / "record.json"
    file.write_text(file.read_text().partition(', "ends_s"')[0] + "}")
    assert read_record(room.folder) == replace(RECORD, name="old")
    session.close()


def test_what_was_left_running_goes_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-c", LEAVING, "one", "close"], check=True)
    (room,) = left_rooms()
    left = read_left(room)
    assert left is not None and remains(room) == "until job=reap"  # nobody said how long
    note_left(Room(folder=room), replace(left, until_s=time.time() + 3 * 86400 + 60))
    assert remains(room) == "3 days more"
    assert reap(None) == ()
    now = time.time()
    monkeypatch.setattr("engine.sandbox.left.time.time", lambda: now + 3 * 86400 + 120)
    assert remains(room) == "no longer"
    assert reap(None) == ("left",)
    assert left_rooms() == []


def test_what_was_left_is_not_taken_from_a_session_that_lives() -> None:
    """Somebody is inside, or the trial that left it has not ended."""
    session = Session("one")
    room = held(session, "left", ends_s=lifetime.clock() - 1e5, boot=lifetime.boot())
    note_left(room, Left(name="left", workdir="/w", environment={}, uid=1, disk_mb=0, until_s=1.0))
    assert reap_sessions(None, left_too=True) == ([], [])
    assert room.folder.exists()
    session.close()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s"), (40, "40 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (172800, "2 days"), (604800, "7 days")],
)
def test_a_time_is_said_as_a_person_says_it(seconds: float, said: str) -> None:
    assert words(seconds) == said
