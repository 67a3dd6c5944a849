"""What the runtimes of one machine share: start, records, rooms, removal. A runtime adds how namespaces are made.

Invariants: everything made for a sandbox is in its record before it exists; a `create` that fails or is cancelled
leaves nothing; `start` removes what dead runs left; `stop` ends every sandbox and warm process that is still there.
Refuses a machine on which a limit, a tool or a right is missing (`problems`).
"""

import abc
import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import Capabilities, SandboxSpec
from engine.core.threads import in_thread
from engine.sandbox import cgroups, files, lifetime, seccomp
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.ledger import Session, reap
from engine.sandbox.lifetime import Allowance
from engine.sandbox.rooms import HOME, Record, Room, Storage, dismantle, furnish
from engine.sandbox.tools import find
from engine.sandbox.warm import WarmProcesses

_KEY = "sandbox"
_LOOK_S = 5.0
"""Between two looks for sandboxes whose time is over."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every runtime of this machine is told."""

    uid: int
    """User and group of every command."""
    storage: Storage
    output_limit_bytes: int
    """Kept of each output stream of a command."""
    require_limits: bool
    """Whether a machine that cannot keep a limit is refused."""
    allowance: Allowance
    network: Mapping[str, Sequence[str]]
    """Phase → what a sandbox reaches in it."""


class LocalRuntime(abc.ABC):
    """Base of the runtimes that start sandboxes on this machine."""

    label: str
    """Name of the runtime in records and messages."""
    tools: tuple[tuple[str, str], ...]
    """Programs that it needs, each with its Debian package."""
    capabilities = Capabilities(
        warm_start=True, process_limit=True, disk_limit=True, by_hand=True, network_by_phase=True
    )
    """Where this machine cannot keep a limit, `problems` says so."""

    def __init__(self, settings: Settings, *, disk_mb: int, pids: int) -> None:
        self.disk_mb, self.pids = disk_mb, pids
        self._settings = settings
        self._hosts: Mapping[str, Sequence[str]] = {}
        """Names whose addresses are not looked up: for tests, which have no name server."""
        self._owner = files.Owner(uid=settings.uid, gid=settings.uid)
        self._images: ImageStore | None = None
        self._session: Session | None = None
        self._warm: WarmProcesses | None = None
        self._sandboxes: dict[ContainedSandbox, float] = {}
        """Each with the time at which it is over, by `lifetime.clock`."""
        self._timekeeper: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ what a runtime adds

    @abc.abstractmethod
    async def _launch(self, spec: SandboxSpec, room: Room, record: Record) -> ContainedSandbox:
        """Start the first process over a furnished room; on failure the caller dismantles the room."""

    @abc.abstractmethod
    def _plan(self, spec: SandboxSpec, room: Room) -> Record:
        """What `_launch` will make."""

    async def _begin(self) -> None:  # noqa: B027
        """Start what serves all sandboxes."""

    async def _finish(self) -> None:  # noqa: B027
        """Stop it."""

    # ------------------------------------------------------------ the SandboxRuntime of contracts.py

    def problems(self) -> Sequence[ConfigError]:
        """Rights, tools, control groups and machine type that are missing."""
        found = []
        if os.geteuid() != 0:
            found.append(ConfigError(_KEY, self.label, "sandboxes need root for mounts and limits", "run as root"))
        loop = (("mkfs.ext4", "e2fsprogs"),) if self._settings.storage == "loop" and self.disk_mb else ()
        for tool, package in (*self.tools, ("mount", "mount"), *loop):
            if find(tool) is None:
                way_out = f"apt-get install -y --no-install-recommends {package}"
                found.append(ConfigError(_KEY, self.label, f"{tool} is not installed", way_out))
        if loop and not os.path.exists("/dev/loop-control"):  # noqa: PTH110
            found.append(ConfigError("sandbox.storage", "loop", "no loop devices here", "set sandbox.storage=tmpfs"))
        found += self._limit_problems()
        if not seccomp.supported():
            found.append(
                ConfigError(_KEY, self.label, "no system-call filter for this machine type", "use x86-64 or AArch64")
            )
        return found

    def _limit_problems(self) -> list[ConfigError]:
        missing = cgroups.hierarchies().missing()
        if not missing or (not self._settings.require_limits and len(missing) < len(cgroups.CONTROLLERS)):
            return []
        problem = f"cgroup controllers {', '.join(missing)} cannot be used here: limits could not be kept"
        way_out = "run where cgroups can be written (a privileged container), or set sandbox.require_limits=false"
        return [ConfigError("sandbox.require_limits", self._settings.require_limits, problem, way_out)]

    async def prepare(self, say: Say) -> None:  # noqa: B027
        """Nothing is built for a runtime itself; images are the image store's."""

    async def start(self, images: ImageStore, owner: str) -> None:
        """Remove what dead runs left, then open a session of `owner`."""
        if self._session is not None:
            raise SandboxError(f"{self.label} is started already")
        try:
            await in_thread(reap, None)
        except SandboxError as error:  # somebody else's leftovers are no reason not to run
            _log.warning("%s", error)
        self._images = images
        self._session = await in_thread(Session, owner)
        self._warm = WarmProcesses(self._session.folder, self._settings.uid)
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise
        self._timekeeper = asyncio.create_task(self._keep_time())

    async def create(self, spec: SandboxSpec) -> ContainedSandbox:
        """Start a sandbox. Raises SandboxError; then nothing is left of it."""
        if self._session is None or self._images is None:
            raise SandboxError(f"{self.label} is not started")
        image = self._images.path(spec.image)
        if not (image / ".complete").is_file():
            raise SandboxError(f"image {spec.image.name} is not built")
        for mount in spec.mounts:
            files.parts(mount.target)
            if not mount.source.exists():
                raise SandboxError(f"{mount.source}, to be mounted at {mount.target}, does not exist")
        session = self._session
        room = session.room(spec.name)
        try:
            life_s = self._settings.allowance.life_s(spec)
            record = replace(self._plan(spec, room), ends_s=lifetime.clock() + life_s, boot=lifetime.boot())
            room.note(record)
            await in_thread(self._furnish, spec, room)
            sandbox = await self._launch(spec, room, record)
        except BaseException:
            await in_thread(dismantle, room.folder)
            raise
        self._sandboxes[sandbox] = record.ends_s
        if self._session is not session:
            await sandbox.stop()
            raise SandboxError(f"{self.label} was stopped while sandbox {spec.name} was made")
        return sandbox

    async def stop(self) -> None:
        """Stop every sandbox that is left, then the session. Raises SandboxError naming what could not be removed."""
        session, self._session = self._session, None
        timekeeper, self._timekeeper = self._timekeeper, None
        if timekeeper is not None:
            timekeeper.cancel()
            await asyncio.gather(timekeeper, return_exceptions=True)
        await asyncio.gather(*(sandbox.stop() for sandbox in tuple(self._sandboxes)))
        self._sandboxes.clear()
        if self._warm is not None:
            await self._warm.stop()
        await self._finish()
        if session is not None:
            await in_thread(session.close)

    async def end_expired(self) -> None:
        """End every sandbox whose time is over: its trial, held up by whatever it is, then learns that it is lost."""
        for sandbox, ends_s in tuple(self._sandboxes.items()):
            if ends_s < lifetime.clock():
                try:
                    granted = "its work's limit and sandbox.grace_s, or sandbox.keep_s where a person may stay"
                    await sandbox.expire(granted)
                except (SandboxError, OSError) as error:  # the next look tries no other, a reaper does
                    _log.warning("%s", error)

    # ------------------------------------------------------------ shared steps

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.end_expired()

    def _furnish(self, spec: SandboxSpec, room: Room) -> None:
        assert self._images is not None
        image = self._images.path(spec.image)
        furnish(room, image, disk_mb=spec.disk_mb, storage=self._settings.storage, owner=self._owner)
        for path in (HOME, spec.workdir):
            files.make_folder(room.root, path, self._owner)

    def _forget(self, room: Room) -> None:
        """Called when a sandbox has been removed."""
        self._sandboxes = {sandbox: ends_s for sandbox, ends_s in self._sandboxes.items() if sandbox.room != room}
