"""Sandboxes as pods of a Kubernetes cluster: one pod a trial, one session a run.

Order of a start: the API is asked for its version → leftovers of dead sessions go → a lease says that this one lives →
the gateway listens → the network policy stands → the API judges a sample pod without making it.
Invariants: everything that is made carries the session's labels; a `create` that fails or is cancelled leaves nothing;
no sandbox is handed out before its relay has proved that the network is closed.
Refuses a cluster that does not know image volumes and sidecars, or does not admit the pods.
"""

import asyncio
import hashlib
import importlib.util
import ipaddress
import math
import platform
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, SandboxError
from engine.core.specs import Capabilities, ImageSpec, SandboxSpec
from engine.core.threads import to_the_end
from engine.sandbox.kubernetes import access, manifests
from engine.sandbox.kubernetes.api import MISSING, Api, ApiError
from engine.sandbox.kubernetes.code import code, reference
from engine.sandbox.kubernetes.gateway import RelayGateway
from engine.sandbox.kubernetes.place import Parts, PodPlace
from engine.sandbox.kubernetes.pods import Pods
from engine.sandbox.kubernetes.sessions import LiveSession, reap
from engine.sandbox.remote.inside import RemoteSandbox, Rules
from engine.sandbox.remote.within import interpreter
from engine.sandbox.seccomp import supported

_KEY = "sandbox"
_OLDEST = (1, 33)
"""Sidecars are settled and image volumes known, though they may have to be enabled, from here on."""
_GONE_S = 60.0
_UNTOLD_S = 14400.0
"""Work of a sandbox of which nobody said how long it may take."""
_JOIN_S = 30.0


class KubernetesRuntime:
    """`sandbox=kubernetes`."""

    label = "kubernetes"

    def __init__(
        self,
        *,
        kubeconfig: str | None,
        context: str | None,
        namespace: str,
        registry: str,
        tools_image: str,
        image_volumes: manifests.Delivery,
        image_pull_secrets: Sequence[str],
        gateway: Mapping[str, Any],
        uid: int,
        user_namespaces: bool,
        storage: manifests.Storage,
        storage_class: str | None,
        writable: Sequence[str],
        disk_mb: int,
        pids: int,
        shm_mb: int,
        output_limit_bytes: int,
        require_limits: bool,
        runtime_class: str | None,
        node_selector: Mapping[str, str],
        tolerations: Sequence[Mapping[str, Any]],
        start_timeout_s: float,
        grace_s: float,
        network: Mapping[str, Sequence[str]],
    ) -> None:
        self.network = network  # of images that are built here; lists of phases are refused (`capabilities`)
        self.disk_mb, self.pids = disk_mb, pids
        self.require_limits = require_limits
        self._kubeconfig, self._context = kubeconfig, context
        self._registry, self._settings = registry.rstrip("/"), gateway
        self._output_limit, self._start_timeout_s = output_limit_bytes, start_timeout_s
        self._grace_s = grace_s
        self._shape = manifests.Shape(
            namespace=namespace,
            uid=uid,
            shm_mb=shm_mb,
            storage=storage,
            storage_class=storage_class,
            user_namespaces=user_namespaces,
            delivery=image_volumes,
            writable=tuple(writable),
            tools=tools_image,
            runtime_class=runtime_class,
            node_selector=dict(node_selector),
            tolerations=tuple(tolerations),
            pull_secrets=tuple(image_pull_secrets),
            machine=platform.machine(),
        )
        self._running: _Running | None = None

    @property
    def capabilities(self) -> Capabilities:
        """A pod's processes are counted by themselves only in a user namespace of its own (else the kubelet's limit
        holds, one for all pods of a node); a volume on the node's disk is no limit: who fills it is evicted."""
        return Capabilities(
            warm_start=False,
            process_limit=self._shape.user_namespaces,
            disk_limit=self._shape.storage != "node",
            by_hand=False,
            network_by_phase=False,
        )

    # ------------------------------------------------------------ the SandboxRuntime of contracts.py

    def problems(self) -> Sequence[ConfigError]:
        """What is missing on this machine; nothing is asked of the cluster."""
        found = []
        try:
            access.find(self._kubeconfig, self._context)
        except ConfigError as error:
            found.append(error)
        if importlib.util.find_spec("websockets") is None:
            found.append(ConfigError(_KEY, self.label, "websockets is missing", "pip install websockets"))
        if not supported():
            problem = "no system-call filter for this machine type"
            found.append(ConfigError(_KEY, self.label, problem, "use x86-64 or AArch64"))
        try:
            ipaddress.ip_address(self._settings["host"])
        except ValueError:
            problem = "is no address, and pods cannot look names up"
            found.append(ConfigError("sandbox.gateway.host", self._settings["host"], problem, "give an IP address"))
        if self._shape.storage == "volume" and not self.disk_mb:
            found.append(ConfigError("sandbox.disk_mb", 0, "a volume of its own needs a size", "set it"))
        return found

    async def prepare(self, say: Say) -> None:
        """Nothing is built here: images are the image store's, and are pushed to the registry (see the guide)."""

    async def start(self, images: ImageStore, owner: str) -> None:
        """Open a session of `owner`. Raises SandboxError naming what the cluster lacks."""
        if self._running is not None:
            raise SandboxError(f"{self.label} is started already")
        api = Api(access.find(self._kubeconfig, self._context))
        running = _Running(api, self._shape, owner, self._settings, images)
        try:
            await _check_version(api)
            await reap(api, self._shape.namespace)
            await running.open()
            await self._rehearse(running)
        except BaseException:
            await to_the_end(running.close())
            raise
        self._running = running

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a pod. Raises SandboxError, with the cluster's reason; then nothing is left of it."""
        running = self._running
        if running is None:
            raise SandboxError(f"{self.label} is not started")
        plan = await self._plan(running, spec)
        running.pods.expect(plan.name)
        try:
            manifest = manifests.pod(self._shape, running.session, running.gateway, plan)
            await running.api.create(running.path("pods"), manifest, ours=running.path("pods", plan.name))
            await self._until_ready(running, plan)
        except BaseException:
            running.relays.dismiss(plan.token)
            await to_the_end(running.remove(plan.name))
            raise
        place = PodPlace(
            Parts(
                name=spec.name,
                pod=plan.name,
                namespace=self._shape.namespace,
                writable=manifests.writable(self._shape, spec.workdir),
                interpreter=interpreter(self._shape.machine),
                api=running.api,
                pods=running.pods,
                gateway=running.relays,
                token=plan.token,
                remove=lambda: running.remove(plan.name),
            )
        )
        rules = Rules(uid=self._shape.uid, limit_processes=self._shape.user_namespaces, output_limit=self._output_limit)
        sandbox = RemoteSandbox(spec, place, rules)
        running.sandboxes[plan.name] = sandbox
        if self._running is not running:
            await sandbox.stop()
            raise SandboxError(f"{self.label} was stopped while sandbox {spec.name} was made")
        return sandbox

    async def stop(self) -> None:
        """Remove every pod of the session, then the session. Raises SandboxError naming what could not be removed."""
        running, self._running = self._running, None
        if running is not None:
            await to_the_end(running.close())

    async def reap(self) -> tuple[list[str], list[str]]:
        """What dead sessions of any run left in the namespace: what went, and what stays and why."""
        try:
            api = Api(access.find(self._kubeconfig, self._context))
        except (ConfigError, SandboxError) as error:
            return [], [str(error)]
        try:
            return await reap(api, self._shape.namespace)
        except SandboxError as error:
            return [], [str(error)]
        finally:
            await api.close()

    # ------------------------------------------------------------ steps

    async def _plan(self, running: "_Running", spec: SandboxSpec) -> manifests.Plan:
        image = running.images.path(spec.image)
        if not (image / ".complete").is_file():
            raise SandboxError(f"image {spec.image.name} is not built")
        for mount in spec.mounts:
            if not mount.source.exists():
                raise SandboxError(f"{mount.source}, to be mounted at {mount.target}, does not exist")
        name, files = await running.config_map(spec.image)
        life_s = self._life_s(spec)
        return manifests.Plan(
            name=manifests.object_name(spec.name, secrets.token_hex(5)),
            spec=spec,
            image=reference(self._registry, image),
            mounts=tuple((reference(self._registry, mount.source), mount.target) for mount in spec.mounts),
            config_map=name,
            files=files,
            token=running.relays.admit(spec.name),
            life_s=life_s,
            expires_s=running.api.now() + life_s,
        )

    def _life_s(self, spec: SandboxSpec) -> int:
        """The cluster counts from where it takes a pod on, so what it may take to start is in it."""
        work_s = _UNTOLD_S if spec.work_s is None else spec.work_s
        return math.ceil(self._start_timeout_s + work_s + self._grace_s)

    async def _until_ready(self, running: "_Running", plan: manifests.Plan) -> None:
        """Wait for the containers, then for the relay."""
        fate = running.pods.fate
        await running.pods.until(lambda: fate(plan.name).state != "starting", self._start_timeout_s)
        reached = fate(plan.name)
        if reached.state != "ready":
            why = reached.reason or "it does not start"
            told = await running.event(plan.name)
            late = f" within sandbox.start_timeout_s={self._start_timeout_s:g}" if reached.state == "starting" else ""
            raise SandboxError(f"the pod of {plan.spec.name} did not become ready{late}: {why}{told}")
        await running.relays.joined(plan.token, _JOIN_S)

    async def _rehearse(self, running: "_Running") -> None:
        """Have the API judge a pod like those to come: rights, admission, and whether it keeps every field."""
        spec = SandboxSpec(
            name="rehearsal",
            image=ImageSpec(name="rehearsal", suite=None, packages=(), pip=()),
            mounts=(),
            workdir="/testbed",
            environment={},
            memory_mb=256,
            cpus=1.0,
            pids=self.pids,
            disk_mb=self.disk_mb,
        )
        plan = manifests.Plan(
            name=manifests.object_name(spec.name, secrets.token_hex(5)),
            spec=spec,
            image=self._shape.tools,
            mounts=((self._shape.tools, "/opt/agent"),),
            config_map=running.session.name,
            files={},
            token="",
            life_s=self._life_s(spec),
            expires_s=0,
        )
        wanted = manifests.pod(self._shape, running.session, running.gateway, plan)
        made = await running.api.create(running.path("pods"), wanted, dryRun="All")
        for what, field in _silently_dropped(wanted["spec"], made.get("spec") or {}):
            raise SandboxError(f"the cluster does not know {what}: it dropped {field} of a pod; enable it there")


class _Running:
    """What lives between start and stop."""

    def __init__(
        self, api: Api, shape: manifests.Shape, owner: str, gateway: Mapping[str, Any], images: ImageStore
    ) -> None:
        self.api, self.images = api, images
        self._shape, self._settings = shape, gateway
        self.session = manifests.Session(owner=owner, name=manifests.object_name(owner, secrets.token_hex(5)))
        self.relays = RelayGateway(gateway["bind"], gateway["port"])
        self.pods = Pods(api, self.path("pods"), self.session.selector)
        self.sandboxes: dict[str, RemoteSandbox] = {}
        """By name of the pod."""
        self.gateway = manifests.Gateway(host=gateway["host"], port=gateway["port"], pods=gateway["pods"])
        self._live = LiveSession(api, shape.namespace, self.session)
        self._config_maps: dict[str, asyncio.Task[tuple[str, dict[str, str]]]] = {}

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._shape.namespace}/{kind}{f'/{name}' if name else ''}"

    async def open(self) -> None:
        await self._live.open()
        await self.relays.start()
        self.gateway = manifests.Gateway(
            host=self._settings["host"], port=self.relays.port, pods=self._settings["pods"]
        )
        policy = manifests.network_policy(self._shape.namespace, self.session, self.gateway)
        policies = f"/apis/networking.k8s.io/v1/namespaces/{self._shape.namespace}/networkpolicies"
        await self.api.create(policies, policy, ours=f"{policies}/{self.session.name}")
        self.pods.start()

    async def close(self) -> None:
        """Raises SandboxError naming what could not be removed."""
        try:
            await asyncio.gather(*(sandbox.stop() for sandbox in tuple(self.sandboxes.values())))
            await self._live.close()
        finally:
            await self.pods.stop()
            await self.relays.stop()
            await self.api.close()

    async def config_map(self, image: ImageSpec) -> tuple[str, dict[str, str]]:
        """Our code, and the users of one image; made once for all its sandboxes."""
        key = str(self.images.path(image))
        task = self._config_maps.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._config_maps[key] = asyncio.create_task(self._make_config_map(Path(key)))
        return await asyncio.shield(task)

    async def _make_config_map(self, image: Path) -> tuple[str, dict[str, str]]:
        contents, files = await asyncio.to_thread(code, image, self._shape.uid)
        digest = hashlib.sha256("\0".join(f"{key}={text}" for key, text in sorted(contents.items())).encode())
        name = f"{self.session.name}-{digest.hexdigest()[:8]}"
        body = manifests.config_map(self._shape.namespace, self.session, name, contents)
        await self.api.create(self.path("configmaps"), body, ours=self.path("configmaps", name))
        return name, files

    async def event(self, pod: str) -> str:
        """The last warning that the cluster gave of a pod; empty where there is none."""
        try:
            selector = f"involvedObject.name={pod},type=Warning"
            listed = await self.api.get(self.path("events"), fieldSelector=selector)
        except SandboxError:
            return ""
        said = [" ".join(str(each.get("message", "")).split())[:300] for each in listed.get("items") or ()]
        return f" ({said[-1]})" if said else ""

    async def remove(self, pod: str) -> None:
        """Delete a pod and wait until it is gone: its processes then are. Raises SandboxError."""
        path = self.path("pods", pod)
        await self.api.delete(path)
        if not await self.pods.until(lambda: self.pods.gone(pod), _GONE_S) and await self._there(path):
            # Its node may be gone: the object goes at once, and whatever may still run there has lost its network.
            await self.api.delete(path, grace_s=0)
        self.pods.forget(pod)
        self.sandboxes.pop(pod, None)

    async def _there(self, path: str) -> bool:
        try:
            await self.api.get(path)
        except ApiError as error:
            return error.status != MISSING
        return True


async def _check_version(api: Api) -> None:
    told = await api.get("/version")
    digits = ["".join(character for character in str(told.get(key, "")) if character.isdigit()) for key in _VERSION]
    if all(digits) and (int(digits[0]), int(digits[1])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise SandboxError(f"the cluster is Kubernetes {told.get('gitVersion')}; pods need {oldest} or newer")


_VERSION = ("major", "minor")


def _silently_dropped(wanted: Mapping[str, Any], made: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A server drops fields of features that are off there, and says nothing."""
    dropped = []
    volumes = {each["name"]: each for each in made.get("volumes") or ()}
    if any("image" in each and "image" not in volumes.get(each["name"], {}) for each in wanted["volumes"]):
        dropped.append(("image volumes", "spec.volumes[].image"))
    sidecars = [each for each in made.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    if not sidecars:
        dropped.append(("sidecars", "spec.initContainers[].restartPolicy"))
    if wanted["hostUsers"] is False and made.get("hostUsers") is not False:
        dropped.append(("user namespaces (or set sandbox.user_namespaces=false)", "spec.hostUsers"))
    return dropped
