"""Sandboxes made by podman: a container of its own for each, over the same copy-on-write roots as bubblewrap's.

Podman makes and owns the container: namespaces, control groups with the limits, masked /proc, labels, removal. Its
only process is `catatonit -P`. Commands enter it as `runc exec` would, by the helper that both runtimes share, which
gives exact timeouts, out-of-memory detection and a user without rights; they stay within the container's limits.
There is no registry and no pull: the root is a folder mounted by this package, limited in size, readable after the end.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import SandboxSpec
from engine.core.threads import in_thread
from engine.sandbox.cgroups import Cgroup
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.lifetime import Allowance
from engine.sandbox.local import LocalRuntime, Settings
from engine.sandbox.parts import Parts
from engine.sandbox.podman_service import Service
from engine.sandbox.rooms import Record, Room, Storage, dismantle
from engine.sandbox.tools import find

_INIT = "/.init"
_PERIOD_US = 100_000


class PodmanRuntime(LocalRuntime):
    """`sandbox=podman`: rootful podman with runc, no registry; about 0.1 s a sandbox."""

    label = "podman"
    tools = (
        ("podman", "podman"),
        ("runc", "runc"),
        ("conmon", "conmon"),
        ("catatonit", "catatonit"),
        ("setpriv", "util-linux"),
        ("bwrap", "bubblewrap"),
    )

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
        self._service = Service()

    def problems(self) -> Sequence[ConfigError]:
        """As for every local runtime, and podman's own client."""
        found = list(super().problems())
        if importlib.util.find_spec("podman") is None:
            found.append(ConfigError("sandbox", self.label, "podman-py is missing", "pip install podman"))
        return found

    async def _begin(self) -> None:
        assert self._session is not None
        await self._service.start(self._session.folder / "service")

    async def _finish(self) -> None:
        await self._service.stop()

    def _plan(self, spec: SandboxSpec, room: Room) -> Record:
        container = f"lego-rl-{room.folder.name}"
        return Record(name=spec.name, runtime=self.label, cgroups=(), container=container, init=0, init_started="")

    async def _launch(self, spec: SandboxSpec, room: Room, record: Record) -> ContainedSandbox:
        init = await self._service.create(self._specification(spec, room, record))
        await in_thread(room.note_init, record, init)
        return ContainedSandbox(
            Parts(
                spec=spec,
                room=room,
                init=init,
                cgroup=Cgroup.of(init),
                owner=self._owner,
                warm=self._warm,
                output_limit=self._settings.output_limit_bytes,
                keep_s=self._settings.allowance.keep_s,
                network=self._settings.network,
                hosts=self._hosts,
                remove=partial(self._remove, room, record),
            )
        )

    async def _remove(self, room: Room, record: Record) -> None:
        await self._service.remove(record.container)
        if room.folder.exists():  # else somebody found its time over
            room.note(replace(record, container=""))
        await in_thread(dismantle, room.folder)
        self._forget(room)

    def _specification(self, spec: SandboxSpec, room: Room, record: Record) -> dict[str, Any]:
        """The body of podman's `POST /containers/create`."""
        assert self._session is not None
        init = find("catatonit")
        if init is None:
            raise SandboxError("catatonit is not installed: apt-get install -y --no-install-recommends catatonit")
        memory = spec.memory_mb << 20
        mounts = [(init, _INIT), *((str(mount.source), mount.target) for mount in spec.mounts)]
        return {
            "name": record.container,
            "labels": {"lego-rl.owner": self._session.owner, "lego-rl.sandbox": spec.name},
            "rootfs": str(room.root),
            "command": [_INIT, "-P"],
            "user": "0:0",
            "cap_drop": ["ALL"],
            "no_new_privileges": True,
            "netns": {"nsmode": "none"},
            "cgroupns": {"nsmode": "private"},
            "hostname": "sandbox",
            "use_image_hosts": True,
            "systemd": "false",
            "log_configuration": {"driver": "none"},
            "stop_timeout": 0,
            "shm_size": self._shm_mb << 20,
            "resource_limits": {
                "memory": {"limit": memory, "swap": memory},
                "cpu": {"quota": int(spec.cpus * _PERIOD_US), "period": _PERIOD_US},
                "pids": {"limit": spec.pids + 1},  # the init is in the container's group
            },
            "mounts": [
                {"type": "bind", "source": source, "destination": target, "options": ["ro", "rbind"]}
                for source, target in mounts
            ],
        }
