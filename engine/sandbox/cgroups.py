"""Limits on memory, processes and processor time, and a sure way to kill a set of processes (cgroup v1, v2, hybrid).

A sandbox has one control group with its limits; each command runs in a child group of it, so that a command can be
killed whole, whatever sessions and parents its processes gave themselves.
Refuses (SandboxError) a limit whose controller this machine does not offer.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.core.errors import SandboxError

PARENT = "lego-rl"
"""Folder of all groups, at the top of each hierarchy."""
CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_PATIENCE_S = 10.0
"""How long killed processes may take to vanish."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int
    cpus: float
    pids: int


@dataclass(frozen=True, kw_only=True)
class Hierarchies:
    """Where each controller is mounted."""

    v1: Mapping[str, Path]
    """Controller → mount point, version 1 (also `freezer`)."""
    v2: Path | None
    """Mount point of version 2."""
    v2_controllers: frozenset[str]

    def missing(self) -> tuple[str, ...]:
        """Controllers that cannot be used here."""
        return tuple(name for name in CONTROLLERS if not self._usable(name))

    def _usable(self, controller: str) -> bool:
        if controller in self.v1:
            return os.access(self.v1[controller], os.W_OK)
        if controller not in self.v2_controllers or self.v2 is None or not os.access(self.v2, os.W_OK):
            return False
        # A controller is handed down where it is already, at the true root, or where no process sits in between.
        handed_down = controller in (self.v2 / "cgroup.subtree_control").read_text().split()
        is_root = not (self.v2 / "cgroup.type").exists()
        return handed_down or is_root or not (self.v2 / "cgroup.procs").read_text().strip()


@cache
def hierarchies() -> Hierarchies:
    """This machine's hierarchies, read once."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount = Path(before.split()[4])
        if kind == "cgroup":
            for option in options.rpartition(" ")[2].split(","):
                v1.setdefault(option, mount)
        elif kind == "cgroup2" and v2 is None:
            v2 = mount
    names = frozenset((v2 / "cgroup.controllers").read_text().split()) if v2 else frozenset()
    return Hierarchies(v1=v1, v2=v2, v2_controllers=names)


class Cgroup:
    """The control group of one sandbox: a folder in each hierarchy that matters."""

    def __init__(self, folders: Mapping[str, Path], *, owned: bool) -> None:
        self._folders = folders
        self._owned = owned
        self._commands = 0

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder of the group, for the record by which leftovers are found."""
        return tuple(dict.fromkeys(self._folders.values()))

    @property
    def _base(self) -> Path:
        """The folder whose members are all of the group: on version 1, the freezer's where there is one."""
        return self._folders.get("freezer") or next(iter(self._folders.values()))

    @classmethod
    def plan(cls, name: str) -> "Cgroup":
        """The group that `create` will make; nothing is written yet."""
        known = hierarchies()
        usable = [controller for controller in CONTROLLERS if controller not in known.missing()]
        folders: dict[str, Path] = {}
        for controller in (*usable, "freezer"):
            if controller in known.v1:
                folders[controller] = known.v1[controller] / PARENT / name
            elif known.v2 is not None and (controller in known.v2_controllers or controller == "freezer"):
                folders[controller] = known.v2 / PARENT / name
        return cls(folders, owned=True)

    @classmethod
    def of(cls, pid: int) -> "Cgroup":
        """The group that a process (a container's first) is in; its limits are whoever's made it."""
        known, folders = hierarchies(), {}
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" and known.v2 is not None:
                where = known.v2 / path.lstrip("/")
                folders.update({name: where for name in (*CONTROLLERS, "freezer") if name not in known.v1})
            for controller in controllers.split(","):
                if controller in known.v1:
                    folders[controller] = known.v1[controller] / path.lstrip("/")
        return cls(folders, owned=False)

    def create(self, limits: Limits) -> None:
        """Make the folders and write the limits that this machine can keep (whether that will do is the runtime's to
        decide). Raises SandboxError naming the file that refused."""
        known = hierarchies()
        if known.v2 is not None and any(known.v2 in folder.parents for folder in self.folders):
            wanted = " ".join(f"+{name}" for name in CONTROLLERS if name in known.v2_controllers)
            (known.v2 / PARENT).mkdir(exist_ok=True)
            _write(known.v2 / "cgroup.subtree_control", wanted)
            _write(known.v2 / PARENT / "cgroup.subtree_control", wanted)
        for folder in self.folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SandboxError(f"cannot make the cgroup {folder}: {error.strerror}") from error
        for name in [name for name in CONTROLLERS if name in self._folders]:
            for file, value in self._values(name, limits):
                _write(self._folders[name] / file, value)

    def _values(self, controller: str, limits: Limits) -> Iterator[tuple[str, str]]:
        old = controller in hierarchies().v1
        memory = str(limits.memory_mb << 20)
        if controller == "pids":
            yield "pids.max", str(limits.pids)
        elif controller == "cpu":
            quota = int(limits.cpus * _PERIOD_US)
            if old:
                yield "cpu.cfs_period_us", str(_PERIOD_US)
                yield "cpu.cfs_quota_us", str(quota)
            else:
                yield "cpu.max", f"{quota} {_PERIOD_US}"
        else:
            yield ("memory.limit_in_bytes" if old else "memory.max"), memory
            swap = "memory.memsw.limit_in_bytes" if old else "memory.swap.max"
            if (self._folders["memory"] / swap).exists():
                yield swap, (memory if old else "0")

    def command_group(self) -> "CommandGroup":
        """A new child group for one command."""
        base = self._base
        while True:
            self._commands += 1
            child = base / f"command-{self._commands}"
            with contextlib.suppress(FileExistsError):  # another process's, in a sandbox that was left running
                child.mkdir()
                break
        others = [folder for folder in self.folders if folder != base]
        return CommandGroup(child, tuple(_door(folder) for folder in (*others, child)))

    def oom_kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        folder = self._folders.get("memory", self._base)
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def processes(self) -> set[int]:
        """Host process ids of all members, zombies left out."""
        return {pid for pid in _members(self._base) if not _is_zombie(pid)}

    def kill_commands(self) -> None:
        """Kill every command with all that it started, and nothing else: a sandbox's first process is in no command's
        group. Raises SandboxError when some do not vanish."""
        for child in self._base.glob("command-*/"):
            kill_folder(child)
            with contextlib.suppress(OSError):
                child.rmdir()

    def remove(self) -> None:
        """Kill what is left and remove the folders, unless they are somebody else's."""
        if not self._owned:
            return
        remove_folders(self.folders)


class CommandGroup:
    """The processes of one command."""

    def __init__(self, folder: Path, joins: Sequence[Path]) -> None:
        self._folder = folder
        self.joins = tuple(joins)
        """The files that the command's first process, which has one thread, writes itself into."""

    @contextlib.contextmanager
    def joining(self) -> Iterator[list[int]]:
        """Descriptors of `joins`: whoever enters with them needs no right over control groups, since the kernel asks
        who opened them."""
        opened: list[int] = []
        try:
            for path in self.joins:
                opened.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def kill(self) -> None:
        """Kill every member, and those that they start meanwhile; returns when none is left."""
        kill_folder(self._folder)

    def close(self) -> None:
        """Remove the group if the command left nothing running; otherwise it stays until the sandbox ends."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _door(folder: Path) -> Path:
    """On version 1 a thread that moves itself alone need not wait until no process of the machine forks or ends, which
    takes the kernel ten milliseconds."""
    alone = folder / "tasks"
    return alone if alone.exists() else folder / "cgroup.procs"


def kill_folder(folder: Path) -> None:
    """Kill all members of a group and of its children. Raises SandboxError when some do not vanish."""
    deadline = time.monotonic() + _PATIENCE_S
    while _members(folder):
        if time.monotonic() > deadline:
            raise SandboxError(f"processes in {folder} do not end")
        _kill_once(folder)
        time.sleep(0.002)


def remove_folders(folders: Sequence[Path]) -> None:
    """Kill the members of groups and remove them with their children; missing ones are fine."""
    for folder in folders:
        if not folder.is_dir():
            continue
        kill_folder(folder)
        deadline = time.monotonic() + _PATIENCE_S
        for part in [*sorted(folder.rglob("*/"), reverse=True), folder]:
            while part.is_dir():
                try:
                    part.rmdir()
                except OSError as error:  # members that are dead but not yet reaped keep it busy
                    if time.monotonic() > deadline:
                        raise SandboxError(f"cannot remove the cgroup {part}: {error.strerror}") from error
                    time.sleep(0.005)


def _kill_once(folder: Path) -> None:
    for part in [folder, *folder.rglob("*/")]:
        with contextlib.suppress(OSError):
            (part / "cgroup.kill").write_text("1")
            continue
        # Version 1: frozen processes start no others while their list is read.
        freezer = part / "freezer.state"
        with contextlib.suppress(OSError):
            freezer.write_text("FROZEN")
        for pid in _own_members(part):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            freezer.write_text("THAWED")


def _members(folder: Path) -> list[int]:
    return [pid for part in [folder, *folder.rglob("*/")] for pid in _own_members(part)]


def _own_members(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in (folder / "cgroup.procs").read_text().split() if word != "0"]
    return []


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise SandboxError(f"cannot set {path} to {value}: {error.strerror}") from error
