"""Disks and mounts made by system calls: they hold what they should, end with their mount, and say what was refused."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.errors import SandboxError
from engine.sandbox import mounts
from engine.sandbox.bubblewrap import BubblewrapRuntime

SIZE_MB = 24


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    runtime = BubblewrapRuntime(
        uid=10001,
        storage="loop",
        disk_mb=1,
        pids=16,
        shm_mb=1,
        output_limit_bytes=1,
        require_limits=False,
        grace_s=60,
        keep_s=60,
        network={},
    )
    missing = runtime.problems()
    if missing:
        pytest.skip(f"this machine cannot mount: {missing[0]}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    mounts.unmount(folder, lazy=True)


def device_of(place: Path) -> str:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next(line.split(" - ")[1].split()[1] for line in lines if line.split()[4] == str(place))


def backing(device: str) -> str:
    try:
        return (Path("/sys/block") / Path(device).name / "loop/backing_file").read_text().strip()
    except OSError:
        return ""


def test_a_disk_holds_its_size_and_no_more_and_its_device_goes_with_it(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, second = tmp_path / "disk.img", tmp_path / "second name"
    unlink = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path, **how: path.rename(second) if path == file else unlink(path, **how)
    )
    mounts.mount_disk(file, place, SIZE_MB)
    monkeypatch.undo()
    device = device_of(place)
    assert not file.exists()
    assert backing(device) == str(second)
    (place / "small").write_bytes(b"x" * 1000)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (place / "large").write_bytes(b"x" * (SIZE_MB << 20))
    assert mounts.unmount(place, lazy=False)
    assert backing(device) != str(second)
    checked = subprocess.run(["e2fsck", "-fn", str(second)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_a_new_disk_is_empty_whatever_was_on_the_last_one(tmp_path: Path, place: Path, cache: Path) -> None:
    for number in range(2):
        mounts.mount_disk(tmp_path / f"disk{number}.img", place, SIZE_MB)
        assert {path.name for path in place.iterdir()} == {"lost+found"}
        (place / "left").write_text("x")
        mounts.unmount(place, lazy=False)
    assert [path.name for path in (cache / "disks").iterdir()] == [f"ext4-{SIZE_MB}.img"]


def test_setuid_and_devices_mean_nothing_on_any_of_them(tmp_path: Path, place: Path) -> None:
    for name in ("lower", "upper", "work", "target"):
        (tmp_path / name).mkdir()
    target = tmp_path / "target"
    mounts.mount_overlay(tmp_path, lower="lower", upper="upper", work="work", target="target")
    mounts.mount_tmpfs(place, 1)
    try:
        for mounted in (target, place):
            flags = os.statvfs(mounted).f_flag
            assert flags & os.ST_NOSUID
            assert flags & os.ST_NODEV
        options = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(target) in line)
        assert "lowerdir=lower,upperdir=upper" in options
        assert Path.cwd() != tmp_path
    finally:
        assert mounts.unmount(target, lazy=False)


def test_a_busy_mount_is_told_from_one_that_is_not_there(tmp_path: Path, place: Path) -> None:
    mounts.mount_tmpfs(place, 1)
    with (place / "open").open("w"):
        assert not mounts.unmount(place, lazy=False)
    assert mounts.unmount(place, lazy=False)
    assert mounts.unmount(place, lazy=False)
    assert mounts.unmount(tmp_path / "nowhere", lazy=False)


def test_refusals_name_what_was_to_be_mounted(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match=r"mounting tmpfs at .*nowhere .*No such file"):
        mounts.mount_tmpfs(tmp_path / "nowhere", 1)
    with pytest.raises(SandboxError, match=r"mounting overlay at target .*lowerdir=none"):
        mounts.mount_overlay(tmp_path, lower="none", upper="upper", work="work", target="target")
    monkeypatch.setattr(mounts, "find", lambda tool: None)
    with pytest.raises(SandboxError, match=r"mkfs.ext4 is not installed"):
        mounts.mount_disk(tmp_path / "disk.img", place, 32)
    assert not (tmp_path / "cache/disks").exists()
