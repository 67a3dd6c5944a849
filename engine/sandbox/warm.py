"""Warm processes: each imports one harness once, in a namespace of its own, and forks into sandboxes from then on.

What such a process may do and see: it is the sandboxes' user with the few capabilities that entering needs, under their
filter of system calls less two (so it mounts nothing); a file system of the sandbox's mounts and its own files; no
network; a socket to this process alone. It stays in this process's namespace of process ids, since only from there the
sandboxes' can be entered, and cannot look into processes of another user there.

Invariants: there is one for each distinct (start, mounts, environment, folder), so that what its imports saw is what
they would have seen in the sandbox; it ends with this process, however that ends; nothing of a trial is told to it.
Refuses (HarnessError) a program that does not import, does not become ready in time, or runs threads after its import.
"""

import asyncio
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import HarnessError, SandboxError
from engine.core.specs import Mount, WarmStart
from engine.sandbox import enter, fork_server, seccomp, warm_server
from engine.sandbox.commands import Forked, memory_file
from engine.sandbox.files import parts
from engine.sandbox.forks import ForkServer, Lost, Porter
from engine.sandbox.tools import find

_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SETPCAP", "CAP_SETUID", "CAP_SETGID")
"""To enter namespaces and their file system, and to drop the rest; the last two until it has become the user."""
_CALLS = ("setns", "keyctl")
"""System calls that entering needs and that the sandboxes' filter refuses."""
_SERVER = "/run/warm"
_OWN = ("dev", "proc", "run", "sys", "tmp")
"""Folders of the root that are never the image's."""
_START_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the imports see beside the program's own files: the same as in the sandbox."""

    image: Path
    """The image's root; bound only where the start asks for it."""
    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]
    cwd: str

    def key(self, start: WarmStart) -> object:
        """Equal for those that one process can serve."""
        pairs = (tuple(sorted(items)) for items in (self.environment.items(), start.files.items()))
        root = self.image if start.image else None
        return (start.interpreter, start.folder, start.module, root, self.mounts, self.cwd, *pairs)


class WarmProcesses:
    """All warm processes of one runtime."""

    def __init__(self, folder: Path, uid: int) -> None:
        """`folder`: a host folder of this session, where each keeps its files; `uid`: the sandboxes' user."""
        self._folder, self._uid = folder, uid
        self._processes: dict[object, asyncio.Task[WarmProcess]] = {}
        self.porter = Porter()
        """Forks where there is nothing to be imported beforehand."""

    async def fork(self, start: WarmStart, place: Place, descriptors: Sequence[int]) -> Forked:
        """A new process that enters the sandbox given by `descriptors` (see warm_server)."""
        try:
            return await (await self.ready(start, place)).fork(descriptors)
        except Lost:  # what it may have forked died with it
            try:
                return await (await self.ready(start, place)).fork(descriptors)
            except Lost as error:
                raise SandboxError(f"the warm process of {start.folder} was lost twice: {error}") from error

    async def ready(self, start: WarmStart, place: Place) -> "WarmProcess":
        """The warm process, started when there is none or the last one died; who comes meanwhile waits for the same
        start. Raises HarnessError when it cannot be started."""
        key = place.key(start)
        task = self._processes.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() or not task.result().alive)):
            task = self._processes[key] = asyncio.create_task(self._replace(task, start, place))
        # a caller that is cancelled leaves the start to the others
        return await asyncio.shield(task)

    async def _replace(self, old: "asyncio.Task[WarmProcess] | None", start: WarmStart, place: Place) -> "WarmProcess":
        if old is not None and not old.cancelled() and old.exception() is None:
            await old.result().stop()
        folder = self._folder / f"warm-{secrets.token_hex(4)}"
        process = WarmProcess(folder, self._uid)
        try:
            await process.start(start, place)
        except BaseException:
            await asyncio.shield(process.stop())
            raise
        return process

    async def stop(self) -> None:
        """End them all; safe to call again."""
        tasks, self._processes = list(self._processes.values()), {}
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, WarmProcess):
                await ended.stop()
        await self.porter.stop()


class WarmProcess:
    """One warm process."""

    def __init__(self, folder: Path, uid: int) -> None:
        self._folder, self._uid = folder, uid
        self._server = ForkServer()

    @property
    def alive(self) -> bool:
        return self._server.alive

    async def start(self, start: WarmStart, place: Place) -> None:
        """Start it and wait until its imports are done. Raises HarnessError."""
        await asyncio.to_thread(self._write, start.files)
        try:
            with memory_file(seccomp.program(allowed=_CALLS), 0) as rules:
                ready = await self._server.start(self._command(start, place, rules), (rules,), _START_S)
        except TimeoutError as error:
            problem = f"{start.module} was not imported within {_START_S:.0f} s; {self._server.last_line()}"
            raise HarnessError(problem) from error
        if not ready:
            raise HarnessError(f"the warm process of {start.folder} cannot start: {self._server.last_line()}")

    async def fork(self, descriptors: Sequence[int]) -> Forked:
        """Fork a process over these descriptors. Raises Lost, or SandboxError when it lives but cannot."""
        return await self._server.fork(descriptors)

    async def stop(self) -> None:
        """End it with all that it forked; safe to call again."""
        await self._server.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    def _write(self, contents: Mapping[str, bytes]) -> None:
        self._folder.mkdir()
        for name, content in contents.items():
            path = self._folder.joinpath(*parts(f"/{name}"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for path in (self._folder, *self._folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask: another user reads them

    def _command(self, start: WarmStart, place: Place, rules: int) -> list[str]:
        bwrap = find("bwrap")
        if bwrap is None:
            raise SandboxError("bwrap is not installed: apt-get install -y --no-install-recommends bubblewrap")
        command = [bwrap, "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup", "--die-with-parent"]
        command += ["--hostname", "sandbox", "--clearenv", "--seccomp", str(rules), "--cap-drop", "ALL"]
        for capability in _CAPABILITIES:
            command += ["--cap-add", capability]
        command += ["--proc", "/proc", "--dev", "/dev"]
        # Made beforehand, or they would be closed to all but root.
        targets = [Path(target) for target in (*(mount.target for mount in place.mounts), _SERVER, start.folder)]
        for folder in sorted({str(folder) for target in targets for folder in target.parents} | {_SERVER}):
            command += ["--perms", "0755", "--dir", folder]
        home, beside = place.environment.get("HOME", "/"), str(Path(start.folder).parent)
        for folder in sorted({"/tmp", home, place.cwd, beside} - {"/"}):  # noqa: S108
            command += ["--dir", folder, "--chmod", "0777", folder]  # as in a sandbox, where they are the user's
        if start.image:
            command += image_binds(place.image, [str(target) for target in targets])
        for mount in place.mounts:
            command += ["--ro-bind", str(mount.source), mount.target]
        for module in (enter, fork_server, warm_server):
            path = Path(str(module.__file__)).resolve()
            command += ["--ro-bind", str(path), f"{_SERVER}/{path.name}"]
        command += ["--ro-bind", str(self._folder), start.folder]
        for name, value in place.environment.items():
            command += ["--setenv", name, value]
        server = (f"{_SERVER}/{Path(warm_server.__file__).name}", str(self._server.control), str(self._uid))
        return [*command, "--chdir", place.cwd, "--", *start.interpreter, *server, start.folder, start.module]


def image_binds(image: Path, targets: Sequence[str]) -> list[str]:
    """bubblewrap's options that show an image entry by entry, so that mounts can lie beside its folders' own."""
    options: list[str] = []
    pending = [Path(entry) for entry in sorted(image.iterdir(), reverse=True) if entry.name not in _OWN]
    while pending:
        entry = pending.pop()
        name = f"/{entry.relative_to(image)}"
        if entry.is_symlink():
            options += ["--symlink", str(entry.readlink()), name]
        elif entry.is_dir() and any(f"{target}/".startswith(f"{name}/") for target in targets):
            pending += sorted(entry.iterdir(), reverse=True)
        elif entry.is_dir():
            options += ["--ro-bind", str(entry), name]
    return options
