"""Enters a sandbox that was left running by another process: a claim to its session, then the sandbox as any other.

Invariant: while somebody is inside, nobody removes it: the claim is a shared lock on what a reaper must have alone.
Refuses a name that nothing bears, and a sandbox whose first process is gone (a restart of the machine).
"""

import contextlib
import fcntl
from collections.abc import Iterator

from engine.core.errors import SandboxError
from engine.core.specs import ImageSpec, SandboxSpec
from engine.sandbox.cgroups import Cgroup
from engine.sandbox.files import Owner
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.ledger import left_rooms, remains
from engine.sandbox.left import Left, read_left
from engine.sandbox.parts import Parts
from engine.sandbox.rooms import Record, Room, read_record, started

_OUTPUT = 1 << 20
"""Bytes of each output stream of a command that are kept."""


def names() -> list[str]:
    """Sandboxes that were left running."""
    return sorted(folder.name for folder in left_rooms())


def kept_for(name: str) -> str:
    """How long a sandbox that was left running is kept yet, in words; empty: there is none of this name."""
    return next((remains(folder) for folder in left_rooms() if folder.name == name), "")


@contextlib.contextmanager
def enter_left(name: str) -> Iterator[tuple[ContainedSandbox, Left]]:
    """The sandbox, and how it is to be entered. Raises SandboxError."""
    folder = next((folder for folder in left_rooms() if folder.name == name), None)
    if folder is None:
        raise SandboxError(f"no sandbox {name} was left running here")
    with (folder.parent / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SandboxError(f"sandbox {name} is still its run's, or is being removed") from error
        left, record = read_left(folder), read_record(folder)
        if left is None or record is None or not record.init or started(record.init) != record.init_started:
            raise SandboxError(f"sandbox {name} has ended (a restart ends all); job=reap removes what is left of it")
        sandbox = ContainedSandbox(_parts(Room(folder=folder), left, record))
        try:
            yield sandbox, left
        finally:
            sandbox.release()


def _parts(room: Room, left: Left, record: Record) -> Parts:
    async def nothing() -> None: ...

    return Parts(
        spec=SandboxSpec(
            name=left.name,
            image=ImageSpec(name="", suite=None, packages=(), pip=()),
            mounts=(),
            workdir=left.workdir,
            environment=left.environment,
            memory_mb=0,
            cpus=0.0,
            pids=0,
            disk_mb=left.disk_mb,
            lasting=True,
        ),
        room=room,
        init=record.init,
        cgroup=Cgroup.of(record.init) if record.container else Cgroup.plan(room.folder.name),
        owner=Owner(uid=left.uid, gid=left.uid),
        warm=None,
        output_limit=_OUTPUT,
        keep_s=0.0,
        network={},
        hosts={},
        remove=nothing,
    )
