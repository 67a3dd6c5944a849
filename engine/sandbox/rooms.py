"""The place of one sandbox on the host: a writable copy-on-write root, its record, and the removal of both.

    ROOM/record.json   who started it, and everything that must be undone
    ROOM/lower         link to the image
    ROOM/disk.img      file system of limited size (storage `loop`)
    ROOM/disk          what was written (`upper`, `work`), on that file system, on a tmpfs, or on the cache's own
    ROOM/root          the overlay of both: the sandbox's `/`

The record is written before anything that it names is made, so that whatever a crash left can be undone from it.
`dismantle` is that undoing; ordinary stopping uses the same function. Nothing below a mount is ever deleted: mounts
go first, and a mount that stays stops the removal.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from engine.core.errors import SandboxError
from engine.sandbox import cgroups, mounts, podman_service
from engine.sandbox.endings import exiting
from engine.sandbox.files import Owner

Storage = Literal["loop", "tmpfs"]
USER = "agent"
HOME = "/home/agent"
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """What must be undone for one sandbox."""

    name: str
    """The specification's name."""
    runtime: str
    """bubblewrap or podman."""
    cgroups: tuple[str, ...]
    """Folders of the sandbox's own control groups."""
    container: str
    """Name of the podman container; empty for none."""
    init: int
    """Host process id of the sandbox's first process; 0: not started yet."""
    init_started: str
    """Its start time in clock ticks since boot, which with the id names it for ever."""
    ends_s: float = 0.0
    """When its time is over, by `lifetime.clock`; records of older versions know none."""
    boot: str = ""
    """The start of the machine which that clock counts from; empty: no time was recorded."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """A mounted room."""

    folder: Path

    @property
    def root(self) -> Path:
        """The sandbox's `/` as the host sees it."""
        return self.folder / "root"

    @property
    def image(self) -> Path:
        """The root of the image below it."""
        return (self.folder / "lower").readlink()

    def note(self, record: Record) -> None:
        """Write the record, whole."""
        temporary = self.folder / "record.tmp"
        temporary.write_text(json.dumps(asdict(record)))
        temporary.rename(self.folder / "record.json")

    def note_init(self, record: Record, pid: int) -> Record:
        """Add the first process to the record."""
        known = replace(record, init=pid, init_started=started(pid))
        self.note(known)
        return known


def furnish(room: Room, image: Path, *, disk_mb: int, storage: Storage, owner: Owner) -> None:
    """Mount the writable root and introduce the sandbox's user to it. Raises SandboxError."""
    disk = room.folder / "disk"
    disk.mkdir()
    room.root.mkdir()
    (room.folder / "lower").symlink_to(image)
    if disk_mb and storage == "tmpfs":
        mounts.mount_tmpfs(disk, disk_mb)
    elif disk_mb:
        mounts.mount_disk(room.folder / "disk.img", disk, disk_mb)
    for name in ("upper", "work"):
        (disk / name).mkdir()
        (disk / name).chmod(0o755)  # becomes the mode of `/`, whatever the umask
    # Relative paths: the sandbox reads its own mount table, which should not tell how the host is laid out.
    mounts.mount_overlay(room.folder, lower="lower", upper="disk/upper", work="disk/work", target="root")
    _add_user(room.root, owner)


def _add_user(root: Path, owner: Owner) -> None:
    """No agent has been here yet, so plain paths are safe; links of the image itself are refused."""
    for name, line in (
        ("passwd", f"{USER}:x:{owner.uid}:{owner.gid}::{HOME}:/bin/sh\n"),
        ("group", f"{USER}:x:{owner.gid}:\n"),
    ):
        path = root / "etc" / name
        if path.is_symlink() or path.parent.is_symlink():
            raise SandboxError(f"/etc/{name} of the image is a link")
        path.parent.mkdir(exist_ok=True)
        text = path.read_text() if path.exists() else ""
        path.write_text(text + line)
        path.chmod(0o644)


def started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def end_starters(folder: Path) -> None:
    """End what was starting a sandbox below this folder when its owner was killed: bubblewrap asks the kernel to be
    told of its parent's death, and one that asked too late lives on with what it started."""
    below = f"{folder.resolve()}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                program, *arguments = (entry / "cmdline").read_bytes().split(b"\0")
                if program.endswith(b"bwrap") and any(argument.startswith(below) for argument in arguments):
                    os.kill(int(entry.name), signal.SIGKILL)


def dismantle(folder: Path) -> None:
    """Undo a sandbox: processes, control groups, mounts, files. Safe to repeat. Raises SandboxError if some stays."""
    record = read_record(folder)
    if record is not None:
        if record.container:
            podman_service.remove_container(record.container)
        if record.init and started(record.init) == record.init_started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.init, signal.SIGKILL)
            _until_exiting(record.init)
        cgroups.remove_folders([Path(path) for path in record.cgroups])
    for mount in _mounts_below(folder):
        _unmount(mount)
    left = _mounts_below(folder)
    if left:
        raise SandboxError(f"cannot unmount {left[0]}; its files are kept")
    with contextlib.suppress(FileNotFoundError):  # its owner, and who found its time over, may both be at it
        shutil.rmtree(folder)


def _until_exiting(pid: int) -> None:
    """Before its commands are killed too: an owner that lives, and sees one die, then sees that its sandbox is gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while not exiting(pid) and time.monotonic() < deadline:
        time.sleep(0.001)


def read_record(folder: Path) -> Record | None:
    """The record of a room; None before it was written, and where a power cut took what it held: the processes, mounts
    and groups that it named went with it."""
    try:
        values = json.loads((folder / "record.json").read_text())
        return Record(**values | {"cgroups": tuple(values["cgroups"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _mounts_below(folder: Path) -> list[Path]:
    """Mount points inside a folder, innermost and latest first."""
    prefix = f"{folder.resolve()}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point) for point in points]
    return [Path(point) for point in reversed(decoded) if point.startswith(prefix)]


def _unmount(mount: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not mounts.unmount(mount, lazy=False):
        if time.monotonic() > deadline:  # a process of somebody else's looks at it: it goes when that lets go
            mounts.unmount(mount, lazy=True)
            return
        time.sleep(0.01)
