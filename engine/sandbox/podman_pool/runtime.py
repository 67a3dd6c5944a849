"""Sandboxes on a pool of podman hosts: two containers each, on the host that has the least to carry.

Order of a start: every host is asked what it is, and dead sessions' leftovers there go → hosts are watched. Order of a
`create`: a place on the least loaded host → its images are there → the relay → the task. Invariants: a `create` that
fails or is cancelled leaves nothing on a host that answers; a host that does not answer costs its own sandboxes alone,
and `create` fails for it only where no other answers.
Refuses an engine without a Python for its containers (`sandbox.tools`, built by `job=prepare`).
"""

import asyncio
import contextlib
import logging
import platform
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import Capabilities, ImageSpec, SandboxSpec
from engine.core.temporary import temporary_folder
from engine.core.threads import in_thread, to_the_end
from engine.sandbox.files import parts
from engine.sandbox.images import DebianImageStore
from engine.sandbox.podman_pool import addresses, containers, images
from engine.sandbox.podman_pool.api import Api, ApiError, Unreachable
from engine.sandbox.podman_pool.hosts import Host, Watch
from engine.sandbox.podman_pool.place import Parts, PoolPlace
from engine.sandbox.podman_pool.placement import choose
from engine.sandbox.podman_pool.reaping import of_session, reap, remove
from engine.sandbox.podman_pool.way import Way
from engine.sandbox.remote.inside import RemoteSandbox, Rules
from engine.sandbox.remote.within import interpreter
from engine.sandbox.seccomp import supported
from engine.sandbox.tools import find

_log = logging.getLogger(__name__)
_KEY = "sandbox"


class PodmanPoolRuntime:
    """`sandbox=podman_pool`."""

    label = "podman_pool"

    def __init__(
        self,
        *,
        hosts: Sequence[Mapping[str, Any]],
        tools: Mapping[str, Any],
        uid: int,
        storage: containers.Storage,
        disk_mb: int,
        pids: int,
        shm_mb: int,
        output_limit_bytes: int,
        require_limits: bool,
        start_timeout_s: float,
        probe_s: float,
        lost_after_s: float,
        lease_s: float,
        network: Mapping[str, Sequence[str]],
    ) -> None:
        self.network = network  # of images that are built here; lists of phases are refused (`capabilities`)
        self.disk_mb, self.pids = disk_mb, pids
        self.require_limits = require_limits
        self._hosts, self._start_timeout_s = tuple(hosts), start_timeout_s
        self._tools = ImageSpec(
            name=tools["name"], suite=tools["suite"], packages=tuple(tools["packages"]), pip=tuple(tools["pip"])
        )
        self._shape = containers.Shape(
            uid=uid, storage=storage, shm_mb=shm_mb, lease_s=lease_s, machine=platform.machine()
        )
        self._rules = Rules(uid=uid, limit_processes=False, output_limit=output_limit_bytes)
        self._probe_s, self._lost_after_s = probe_s, lost_after_s
        self._running: _Running | None = None

    @property
    def capabilities(self) -> Capabilities:
        """A container's layer is limited by the quota of an XFS file system alone."""
        return Capabilities(
            warm_start=False,
            process_limit=True,
            disk_limit=self._shape.storage == "quota",
            by_hand=False,
            network_by_phase=False,
        )

    # ------------------------------------------------------------ the SandboxRuntime of contracts.py

    def problems(self) -> Sequence[ConfigError]:
        """What is missing on this machine, and addresses that are none; no host is asked."""
        found: list[ConfigError] = []
        names = [host["name"] for host in self._hosts]
        for index, host in enumerate(self._hosts):
            key = f"{_KEY}.hosts.{index}"
            if names.index(host["name"]) != index:
                found.append(ConfigError(f"{key}.name", host["name"], "is another host's already", "choose another"))
            try:
                address = addresses.parse(key, host)
            except ConfigError as error:
                found.append(error)
                continue
            if address.ssh and find("ssh") is None:
                way_out = "apt-get install -y --no-install-recommends openssh-client"
                found.append(ConfigError(f"{key}.address", host["address"], "ssh is not installed", way_out))
        if not supported():
            problem = "no system-call filter for this machine type"
            found.append(ConfigError(_KEY, self.label, problem, "use x86-64 or AArch64"))
        return found

    async def prepare(self, say: Say) -> None:
        """Build the image that holds our Python."""
        await DebianImageStore().build(self._tools, say)

    async def start(self, store: ImageStore, owner: str) -> None:
        """Open a session of `owner`. Raises SandboxError where no host answers, or one is not of the kind."""
        if self._running is not None:
            raise SandboxError(f"{self.label} is started already")
        for problem in self.problems():
            raise SandboxError(str(problem))
        running = _Running(self._hosts, self._watch(owner), store)
        try:
            await running.open(await self._tools_image(store))
        except BaseException:
            await to_the_end(running.close())
            raise
        self._running = running

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Make a sandbox on the least loaded host. Raises SandboxError; then nothing is left of it."""
        running = self._running
        if running is None:
            raise SandboxError(f"{self.label} is not started")
        mounts = await _references(running.store, spec)
        while True:
            host = await running.seat(self._start_timeout_s)
            try:
                sandbox = await self._make(running, host, spec, mounts)
                break
            except Unreachable as error:
                running.vacate(host)
                host.set_aside(str(error))
            except BaseException:
                running.vacate(host)
                raise
        if self._running is not running:
            await sandbox.stop()
            raise SandboxError(f"{self.label} was stopped while sandbox {spec.name} was made")
        return sandbox

    async def stop(self) -> None:
        """Remove every sandbox of the session, then the session. Raises SandboxError naming what stays."""
        running, self._running = self._running, None
        if running is not None:
            await to_the_end(running.close())

    async def reap(self) -> tuple[list[str], list[str]]:
        """What dead sessions of any run left on the hosts: what went, and what stays and why."""
        reaped, problems = [], []
        with temporary_folder("pool") as folder:
            for index, host in enumerate(self._hosts):
                try:
                    api = Api(host["name"], addresses.parse(f"{_KEY}.hosts.{index}", host), folder)
                except ConfigError as error:
                    problems.append(str(error))
                    continue
                try:
                    went, stays = await reap(api)
                finally:
                    await api.close()
                reaped += went
                problems += stays
        return reaped, problems

    # ------------------------------------------------------------ steps

    def _watch(self, owner: str) -> Watch:
        session = containers.session_name(owner, secrets.token_hex(5))
        return Watch(
            probe_s=self._probe_s,
            lost_after_s=self._lost_after_s,
            machine=self._shape.machine,
            owner=owner,
            session=session,
        )

    async def _tools_image(self, store: ImageStore) -> images.Sources:
        folder = store.path(self._tools)
        if not (folder / ".complete").is_file():
            raise SandboxError(f"image {self._tools.name} (sandbox.tools) is not built: python -m engine job=prepare")
        code, layer = images.code()
        return images.Sources(tools=await in_thread(images.reference, folder), folder=folder, code=code, layer=layer)

    async def _make(
        self, running: "_Running", host: Host, spec: SandboxSpec, mounts: Sequence[images.Mounted]
    ) -> RemoteSandbox:
        """On a host whose seat is taken; on failure nothing is left there."""
        own = running.sources
        plan = containers.Plan(
            name=containers.object_name(spec.name, secrets.token_hex(5)),
            owner=running.watch.owner,
            session=running.watch.session,
            spec=spec,
            image=mounts[0].name,
            tools=own.tools,
            code=own.code,
            mounts=tuple((each.name, each.target) for each in mounts[1:]),
        )
        wanted: list[tuple[str, Path | bytes]] = [(own.code, own.layer), (own.tools, own.folder)]
        for name, source in [*wanted, *((each.name, each.source) for each in mounts)]:
            await host.images.have(name, source)
        way: Way | None = None
        try:
            async with asyncio.timeout(self._start_timeout_s):
                way = await self._open_way(running, host, plan)
                await _make(host.api, containers.task(self._shape, plan))
                await _begin(host.api, plan.name)
                if not await way.settle():
                    raise SandboxError(f"the relay of {spec.name} does not answer: {way.lost or 'it is silent'}")
        except BaseException as error:
            await to_the_end(_undo(host, plan.name, way))
            if isinstance(error, TimeoutError):
                late = f"within sandbox.start_timeout_s={self._start_timeout_s:g}"
                raise SandboxError(f"{spec.name} did not start on {host.name} {late}") from error
            if isinstance(error, ApiError):
                host.images.forget()  # somebody may have removed one
            raise
        return running.seated(host, plan, way, RemoteSandbox(spec, self._place(running, host, plan, way), self._rules))

    def _place(self, running: "_Running", host: Host, plan: containers.Plan, way: Way) -> PoolPlace:
        return PoolPlace(
            Parts(
                name=plan.spec.name,
                container=plan.name,
                interpreter=interpreter(self._shape.machine),
                api=host.api,
                way=way,
                remove=lambda: running.leave(host, plan.name, way),
            )
        )

    async def _open_way(self, running: "_Running", host: Host, plan: containers.Plan) -> Way:
        """Make the relay; its stream is joined before it starts, so that it ends with the stream from the beginning."""
        relay = f"{plan.name}-relay"
        await _make(host.api, containers.relay(self._shape, plan))
        query = {"stream": "true", "stdin": "true", "stdout": "true", "stderr": "true"}
        stream = await host.api.hijack(f"/containers/{relay}/attach", query, None)
        way = Way(plan.spec.name, running.folder, self._shape.lease_s, stream)
        try:
            await _begin(host.api, relay)
            if not await way.settle():
                raise SandboxError(f"the relay of {plan.spec.name} does not start: {way.lost or 'it is silent'}")
        except BaseException:
            await to_the_end(way.close())
            raise
        return way


class _Running:
    """What lives between start and stop."""

    sources: images.Sources

    def __init__(self, hosts: Sequence[Mapping[str, Any]], watch: Watch, store: ImageStore) -> None:
        self.watch, self.store = watch, store
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(temporary_folder("pool"))
        self.hosts = [
            Host(each["name"], addresses.parse(f"{_KEY}.hosts.{index}", each), each["capacity"], watch, self.folder)
            for index, each in enumerate(hosts)
        ]
        self.sandboxes: dict[str, tuple[Host, RemoteSandbox]] = {}
        self._changed = asyncio.Event()

    async def open(self, sources: images.Sources) -> None:
        """Raises SandboxError where no host answers or one cannot do."""
        self.sources = sources
        await asyncio.gather(*(host.open() for host in self.hosts))
        self._require_one()
        for host in self.hosts:
            if not host.seats.away:
                for problem in (await reap(host.api))[1]:
                    _log.warning("host %s: %s", host.name, problem)
            host.watch(self._changed.set)

    async def seat(self, patience_s: float) -> Host:
        """Take a seat on the least loaded host, waiting for one. Raises SandboxError where no host answers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while (index := choose(host.seats for host in self.hosts)) is None:
                    self._require_one()
                    self._changed.clear()
                    await self._changed.wait()
                self.hosts[index].seats.here += 1
                return self.hosts[index]
        raise SandboxError(
            f"no host had room within sandbox.start_timeout_s={patience_s:g}; raise sandbox.hosts.N.capacity"
        )

    def _require_one(self) -> None:
        if all(host.seats.away for host in self.hosts):
            raise SandboxError("; ".join(f"{host.name}: {host.seats.away}" for host in self.hosts))

    def vacate(self, host: Host) -> None:
        host.seats.here -= 1
        self._changed.set()

    def seated(self, host: Host, plan: containers.Plan, way: Way, sandbox: RemoteSandbox) -> RemoteSandbox:
        host.ways.add(way)
        self.sandboxes[plan.name] = host, sandbox
        return sandbox

    async def leave(self, host: Host, name: str, way: Way) -> None:
        """Remove a sandbox; its seat is free whether or not its host answers. Raises SandboxError."""
        host.ways.discard(way)
        if self.sandboxes.pop(name, None) is not None:
            self.vacate(host)
        await remove(host.api, name)

    async def close(self) -> None:
        """Raises SandboxError naming what stays; what is on a host that does not answer ends by itself."""
        problems: list[str] = []
        try:
            await asyncio.gather(*(sandbox.stop() for _, sandbox in tuple(self.sandboxes.values())))
            for host in self.hosts:
                with contextlib.suppress(Unreachable):
                    for name in await of_session(host.api, self.watch.session):
                        try:
                            await remove(host.api, name)
                        except ApiError as error:
                            problems.append(str(error))
        finally:
            await asyncio.gather(*(host.close() for host in self.hosts))
            self._stack.close()
        if problems:
            raise SandboxError("; ".join(problems))


async def _make(api: Api, body: Mapping[str, Any]) -> None:
    """To its end, whoever loses patience: a container that the host makes after it was removed would stay."""
    await to_the_end(api.call("POST", "/containers/create", body=body))


async def _begin(api: Api, container: str) -> None:
    await to_the_end(api.call("POST", f"/containers/{container}/start"))


async def _undo(host: Host, name: str, way: Way | None) -> None:
    if way is not None:
        await way.close()
    with contextlib.suppress(SandboxError):  # what stays goes with the session, or is nobody's and is reaped
        await remove(host.api, name)


async def _references(store: ImageStore, spec: SandboxSpec) -> list[images.Mounted]:
    """The image and the mounts of a sandbox, by the names that they have on hosts. Raises SandboxError."""
    root = store.path(spec.image)
    if not (root / ".complete").is_file():
        raise SandboxError(f"image {spec.image.name} is not built")
    found = [images.Mounted(name=await in_thread(images.reference, root), source=root, target="/")]
    for mount in spec.mounts:
        parts(mount.target)
        if not mount.source.is_dir():
            raise SandboxError(f"{mount.source}, to be mounted at {mount.target}, does not exist or is no folder")
        name = await in_thread(images.reference, mount.source)
        found.append(images.Mounted(name=name, source=mount.source, target=mount.target))
    return found
