"""Limits as files: both versions of control groups, on folders that look like them."""

from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.sandbox import cgroups
from engine.sandbox.cgroups import Cgroup, Hierarchies, Limits

LIMITS = Limits(memory_mb=512, cpus=1.5, pids=64)


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = frozenset({"memory", "pids", "cpu", "io"})
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: Hierarchies(v1={}, v2=tmp_path, v2_controllers=names))
    return tmp_path


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mounts = {name: tmp_path / name for name in ("memory", "pids", "cpu", "freezer")}
    for mount in mounts.values():
        mount.mkdir()
    monkeypatch.setattr(cgroups, "hierarchies", lambda: Hierarchies(v1=mounts, v2=None, v2_controllers=frozenset()))
    return tmp_path


def test_version_2_writes_its_files_and_hands_controllers_down(version_2: Path) -> None:
    group = Cgroup.plan("one")
    group.create(LIMITS)
    folder = version_2 / "lego-rl/one"
    assert group.folders == (folder,)
    assert (folder / "memory.max").read_text() == str(512 << 20)
    assert (folder / "pids.max").read_text() == "64"
    assert (folder / "cpu.max").read_text() == "150000 100000"
    for parent in (version_2, folder.parent):
        assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_version_1_writes_its_files(version_1: Path) -> None:
    group = Cgroup.plan("one")
    group.create(LIMITS)
    assert (version_1 / "memory/lego-rl/one/memory.limit_in_bytes").read_text() == str(512 << 20)
    assert (version_1 / "pids/lego-rl/one/pids.max").read_text() == "64"
    assert (version_1 / "cpu/lego-rl/one/cpu.cfs_quota_us").read_text() == "150000"


def test_a_command_joins_every_hierarchy_once(version_1: Path) -> None:
    group = Cgroup.plan("one")
    group.create(LIMITS)
    command = group.command_group()
    assert {path.relative_to(version_1).as_posix() for path in command.joins} == {
        "memory/lego-rl/one/cgroup.procs",
        "pids/lego-rl/one/cgroup.procs",
        "cpu/lego-rl/one/cgroup.procs",
        "freezer/lego-rl/one/command-1/cgroup.procs",
    }
    assert command.joins != group.command_group().joins


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_for_want_of_memory_are_counted(version_2: Path, file: str, text: str) -> None:
    group = Cgroup.plan("one")
    group.create(LIMITS)
    assert group.oom_kills() == 0
    (version_2 / "lego-rl/one" / file).write_text(text)
    assert group.oom_kills() == 2


def test_a_limit_that_is_refused_names_file_and_value(version_2: Path) -> None:
    (version_2 / "lego-rl/one/pids.max").mkdir(parents=True)
    with pytest.raises(SandboxError, match=r"pids\.max to 64"):
        Cgroup.plan("one").create(LIMITS)


def test_controllers_that_cannot_be_handed_down_are_missing(version_2: Path) -> None:
    known = cgroups.hierarchies()
    assert known.missing() == ()  # the true root
    (version_2 / "cgroup.type").write_text("domain")
    (version_2 / "cgroup.procs").write_text("1\n")
    assert known.missing() == ("memory", "pids", "cpu")  # a container whose own processes sit there
    (version_2 / "cgroup.subtree_control").write_text("cpu memory pids")
    assert known.missing() == ()


def test_this_machine_is_read(tmp_path: Path) -> None:
    cgroups.hierarchies.cache_clear()
    known = cgroups.hierarchies()
    assert known.v1 or known.v2
