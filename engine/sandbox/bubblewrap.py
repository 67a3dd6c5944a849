"""Sandboxes made by bubblewrap: namespaces over a copy-on-write root, with nothing running but a tiny init.

The init is `catatonit -P` as process 1, owned by root but without any capability: the agent, another user, cannot
signal it, and it stays outside the sandbox's limits, so neither `kill -9 -1` nor a fork bomb nor memory pressure ends
the sandbox. bubblewrap ties it to this process: it dies when the engine does, unless it is to last.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.processes import end
from engine.core.specs import SandboxSpec
from engine.core.threads import in_thread
from engine.sandbox.cgroups import Cgroup, Limits
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.lifetime import Allowance
from engine.sandbox.local import LocalRuntime, Settings
from engine.sandbox.parts import Parts
from engine.sandbox.rooms import Record, Room, Storage, dismantle
from engine.sandbox.tools import find

_INIT = "/.init"
_START_S = 20.0
_DETACHED = ("/bin/sh", "-c", '"$@" &', "sh")
"""Starts a program that is no child of this process, and so may outlive it."""


class BubblewrapRuntime(LocalRuntime):
    """`sandbox=bubblewrap`: nothing but Debian's bubblewrap and catatonit; about 0.02 s a sandbox."""

    label = "bubblewrap"
    tools = (("bwrap", "bubblewrap"), ("catatonit", "catatonit"))

    def __init__(
        self,
        *,
        uid: int,
        storage: Storage,
        disk_mb: int,
        pids: int,
        shm_mb: int,
        output_limit_bytes: int,
        require_limits: bool,
        grace_s: float,
        keep_s: float,
        network: Mapping[str, Sequence[str]],
    ) -> None:
        settings = Settings(
            uid=uid,
            storage=storage,
            output_limit_bytes=output_limit_bytes,
            require_limits=require_limits,
            allowance=Allowance(grace_s=grace_s, keep_s=keep_s),
            network=network,
        )
        super().__init__(settings, disk_mb=disk_mb, pids=pids)
        self._shm_mb = shm_mb

    def _plan(self, spec: SandboxSpec, room: Room) -> Record:
        folders = Cgroup.plan(room.folder.name).folders
        return Record(
            name=spec.name,
            runtime=self.label,
            cgroups=tuple(str(folder) for folder in folders),
            container="",
            init=0,
            init_started="",
        )

    async def _launch(self, spec: SandboxSpec, room: Room, record: Record) -> ContainedSandbox:
        cgroup = Cgroup.plan(room.folder.name)
        limits = Limits(memory_mb=spec.memory_mb, cpus=spec.cpus, pids=spec.pids)
        await in_thread(cgroup.create, limits)
        process, init = await self._start_init(spec, room)
        try:
            await in_thread(room.note_init, record, init)
            return ContainedSandbox(
                Parts(
                    spec=spec,
                    room=room,
                    init=init,
                    cgroup=cgroup,
                    owner=self._owner,
                    warm=self._warm,
                    output_limit=self._settings.output_limit_bytes,
                    keep_s=self._settings.allowance.keep_s,
                    network=self._settings.network,
                    hosts=self._hosts,
                    remove=partial(self._remove, process, room),
                )
            )
        except BaseException:
            await end(process)
            raise

    async def _remove(self, process: asyncio.subprocess.Process, room: Room) -> None:
        await end(process)
        await in_thread(dismantle, room.folder)
        self._forget(room)

    async def _start_init(self, spec: SandboxSpec, room: Room) -> tuple[asyncio.subprocess.Process, int]:
        """Start bubblewrap; returns it and the host process id of the sandbox's first process, once that waits."""
        told_read, told_write = os.pipe()
        messages = room.folder / "bwrap.log"
        with os.fdopen(told_read, "rb") as told, messages.open("wb") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(_DETACHED if spec.lasting else ()),
                    *self._command(spec, room, told_write),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(told_write,),
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(told_write)
            try:
                text = await in_thread(told.read)
                init = int(json.loads(text)["child-pid"]) if text else 0
                await _until_waiting(process, init, messages, lasting=spec.lasting)
            except BaseException:
                await end(process)
                raise
        return process, init

    def _command(self, spec: SandboxSpec, room: Room, told: int) -> list[str]:
        init = find("catatonit")
        bwrap = find("bwrap")
        if init is None or bwrap is None:
            raise SandboxError("bwrap or catatonit is not installed: apt-get install bubblewrap catatonit")
        command = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup"]
        command += ["--hostname", "sandbox", "--new-session", "--as-pid-1", "--clearenv"]
        command += [] if spec.lasting else ["--die-with-parent"]
        command += ["--cap-drop", "ALL", "--info-fd", str(told)]
        command += ["--bind", str(room.root), "/", "--proc", "/proc", "--dev", "/dev"]
        command += ["--size", str(self._shm_mb << 20), "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        for mount in spec.mounts:
            command += ["--ro-bind", str(mount.source), mount.target]
        return [*command, "--ro-bind", init, _INIT, "--chdir", "/", "--", _INIT, "-P"]


async def _until_waiting(process: asyncio.subprocess.Process, init: int, messages: Path, *, lasting: bool) -> None:
    """Wait until the first process has become the init: then all mounts are in place and all rights given up."""
    deadline = time.monotonic() + _START_S
    while (lasting or process.returncode is None) and time.monotonic() < deadline and init:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{init}/cmdline").read_bytes().startswith(_INIT.encode() + b"\0"):
                return
        await asyncio.sleep(0.002)
    await end(process)
    reason = " ".join(messages.read_text(errors="replace").split()) or "it did not start in time"
    raise SandboxError(f"bubblewrap: {reason}")
