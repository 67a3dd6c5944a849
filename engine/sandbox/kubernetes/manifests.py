"""What is asked of Kubernetes for one sandbox, as plain data: specification → pod; session → network policy, lease.

A pod has three containers over one volume, `room`, which holds everything that may be written:

    relay    native sidecar: makes the room's folders, proves that the network is closed, leads to the model's proxy
    task     the task's image, read-only, with process 1 of ours; the agent's commands are executed in here alone
    keeper   runs nothing of the agent's: files go in and out through it, also after the task's container has ended

Invariant: no container has a capability, a service account's token, a resolver or a way to gain rights; nothing is
writable but the room and /dev/shm; every object carries its session's labels, by which it is found again.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.core.errors import SandboxError
from engine.core.specs import SandboxSpec
from engine.sandbox.files import parts
from engine.sandbox.remote.within import CODE, TOOLS, interpreter

Json = dict[str, Any]
Storage = Literal["tmpfs", "volume", "node"]
Delivery = Literal["mount", "copy"]

PREFIX = "lego-rl.dev"
"""Of labels and annotations."""
MANAGED = {"app.kubernetes.io/managed-by": "lego-rl"}
ROOM, SIGNAL, STAGE = "/room", "/.lego/signal", "/stage"
"""Folders in the containers: the room; what tells process 1 to end; uploads on the way."""
IMAGES, DELIVERED = "/images", "/delivered"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""As Kubernetes names them."""
_OWN_MB = 96
"""Memory of each of our own two containers, beside what they write."""
_OWN_DISK_MB = 64
_STAGE_MB = 4096
"""What may be on its way into a sandbox at a time."""
_PROBES = 120
"""Seconds that the relay has for proving that the network is closed."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is the same for all pods of a run."""

    namespace: str
    uid: int
    """User and group of every process."""
    shm_mb: int
    storage: Storage
    storage_class: str | None
    user_namespaces: bool
    delivery: Delivery
    writable: tuple[str, ...]
    """Folders beside the specification's workdir that may be written."""
    tools: str
    """Reference of the image that holds our Python."""
    runtime_class: str | None
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    pull_secrets: tuple[str, ...]
    machine: str
    """As `platform.machine()` names it; pods run on nodes of this kind, because images are built for it."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Whose the objects are."""

    owner: str
    """Name of the run."""
    name: str
    """Unique among all sessions; a DNS label."""

    @property
    def labels(self) -> dict[str, str]:
        return {**MANAGED, f"{PREFIX}/owner": label(self.owner), f"{PREFIX}/session": self.name}

    @property
    def selector(self) -> str:
        return f"{PREFIX}/session={self.name}"


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Where relays find this process."""

    host: str
    """Address, not a name: pods have no resolver."""
    port: int
    pods: Mapping[str, str]
    """Labels of the pods that this process runs in; empty: it runs outside the cluster."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pod."""

    name: str
    spec: SandboxSpec
    image: str
    """Reference of the task's image."""
    mounts: tuple[tuple[str, str], ...]
    """Reference of an image → where it is seen, read-only."""
    config_map: str
    """Holds our code, /etc/passwd and /etc/group."""
    files: Mapping[str, str]
    """Its key → path below `CODE`."""
    token: str
    """Known to the relay alone."""
    life_s: int
    """Seconds from its start after which the cluster ends it, whoever forgot it."""
    expires_s: float
    """The same as Unix time, for who reaps."""


def label(text: str) -> str:
    """A label's value: readable, and as distinct as the text."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:48].strip("-")
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")


def object_name(text: str, unique: str) -> str:
    """A DNS label that begins with something readable."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:36].strip("-") or "x"
    return f"lego-rl-{plain}-{unique}"


OWN_INTERPRETER = ("/usr/bin/python3", "-I", "-S", "-B", f"{CODE}/pod.py")
"""The same in the containers whose image it is."""


def writable(shape: Shape, workdir: str) -> tuple[str, ...]:
    """Folders of the room, none within another. Raises SandboxError where a whole root would have to be writable."""
    paths = sorted({f"/{'/'.join(parts(path))}" for path in (workdir, *shape.writable)})
    if "/" in paths:
        raise SandboxError("the workdir is `/`: a pod's root is read-only; let the task name a folder")
    return tuple(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))


def pod(shape: Shape, session: Session, gateway: Gateway, plan: Plan) -> Json:
    """The manifest of a sandbox's pod."""
    room = writable(shape, plan.spec.workdir)
    spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": plan.life_s,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        # Nothing answers there: a name that is looked up is a way out for data.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "hostUsers": not shape.user_namespaces,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": shape.uid,
            "runAsGroup": shape.uid,
            "fsGroup": shape.uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"kubernetes.io/arch": _MACHINES[shape.machine], **shape.node_selector},
        "tolerations": [dict(each) for each in shape.tolerations],
        "imagePullSecrets": [{"name": name} for name in shape.pull_secrets],
        "initContainers": [*_deliverer(shape, plan), _relay(shape, gateway, plan, room)],
        "containers": [_task(shape, plan, room), _keeper(shape, plan)],
        "volumes": _volumes(shape, plan),
    }
    if shape.runtime_class is not None:
        spec["runtimeClassName"] = shape.runtime_class
    metadata = {
        "name": plan.name,
        "namespace": shape.namespace,
        "labels": {**session.labels, f"{PREFIX}/sandbox": label(plan.spec.name)},
        "annotations": {
            f"{PREFIX}/owner": session.owner,
            f"{PREFIX}/sandbox": plan.spec.name,
            f"{PREFIX}/expires": str(int(plan.expires_s)),
        },
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def network_policy(namespace: str, session: Session, gateway: Gateway) -> Json:
    """Nothing in, nothing out (names and IPv6 included) but to this process's gateway, for all pods of a session."""
    width = 128 if ":" in gateway.host else 32
    peers: list[Json] = [{"ipBlock": {"cidr": f"{gateway.host}/{width}"}}]
    if gateway.pods:  # some networks know pods by their labels alone
        peers.append({"podSelector": {"matchLabels": dict(gateway.pods)}})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, session),
        "spec": {
            "podSelector": {"matchLabels": {f"{PREFIX}/session": session.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [{"to": peers, "ports": [{"protocol": "TCP", "port": gateway.port}]}],
        },
    }


def config_map(namespace: str, session: Session, name: str, contents: Mapping[str, str]) -> Json:
    """Small files for pods; cannot be changed any more."""
    metadata = {**_metadata(namespace, session), "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(contents), "immutable": True}


def lease(namespace: str, session: Session, *, holder: str, seconds: int, renewed: str) -> Json:
    """A session's sign of life. `renewed`: RFC 3339 with microseconds, by the cluster's clock."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": _metadata(namespace, session),
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed},
    }


def _metadata(namespace: str, session: Session) -> Json:
    annotations = {f"{PREFIX}/owner": session.owner}
    return {"name": session.name, "namespace": namespace, "labels": session.labels, "annotations": annotations}


# ---------------------------------------------------------------- containers


def _task(shape: Shape, plan: Plan, room: Sequence[str]) -> Json:
    spec = plan.spec
    disk = spec.disk_mb if shape.storage == "node" else 0
    delivered = [(f"mount-{index}", target) for index, (_, target) in enumerate(plan.mounts)]
    mounts = [_read_only(CODE, "code"), _read_only(SIGNAL, "signal"), {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    mounts += [_read_only(f"/etc/{name}", "code", name) for name in ("passwd", "group")]
    mounts += [{"name": "room", "mountPath": path, "subPath": path.lstrip("/")} for path in room]
    for name, target in [("tools", TOOLS), *delivered]:
        mounts.append(_read_only(target, name) if shape.delivery == "mount" else _read_only(target, "delivered", name))
    return {
        "name": "task",
        "image": plan.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*interpreter(shape.machine), "init"],
        "workingDir": "/",
        "securityContext": _security(shape),
        "resources": _resources(f"{spec.cpus:g}", f"{spec.cpus:g}", spec.memory_mb, disk + _OWN_DISK_MB),
        "volumeMounts": mounts,
    }


def _keeper(shape: Shape, plan: Plan) -> Json:
    # Pages of a file in memory count for whoever wrote them first: what is uploaded counts here.
    written = (plan.spec.disk_mb or plan.spec.memory_mb) if shape.storage == "tmpfs" else 0
    return {
        "name": "keeper",
        "image": shape.tools,
        "imagePullPolicy": "IfNotPresent",
        "command": [*OWN_INTERPRETER, "wait"],
        "securityContext": _security(shape),
        "resources": _resources("50m", "1", _OWN_MB + written, _STAGE_MB),
        "volumeMounts": [
            _read_only(CODE, "code"),
            {"name": "room", "mountPath": ROOM},
            {"name": "signal", "mountPath": SIGNAL},
            {"name": "stage", "mountPath": STAGE},
        ],
    }


def _relay(shape: Shape, gateway: Gateway, plan: Plan, room: Sequence[str]) -> Json:
    told = {"gateway": [gateway.host, gateway.port], "token": plan.token, "folders": list(room), "patience_s": _PROBES}
    return {
        "name": "relay",
        "image": shape.tools,
        "imagePullPolicy": "IfNotPresent",
        "command": [*OWN_INTERPRETER, "relay"],
        "env": [{"name": "LEGO_RELAY", "value": json.dumps(told)}],
        "restartPolicy": "Always",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": {
            "exec": {"command": ["/usr/bin/test", "-e", f"{SIGNAL}/ready"]},
            "periodSeconds": 1,
            "failureThreshold": _PROBES + 30,
        },
        "securityContext": _security(shape),
        "resources": _resources("50m", "1", _OWN_MB, _OWN_DISK_MB),
        "volumeMounts": [
            _read_only(CODE, "code"),
            {"name": "room", "mountPath": ROOM},
            {"name": "signal", "mountPath": SIGNAL},
        ],
    }


def _deliverer(shape: Shape, plan: Plan) -> list[Json]:
    """Copies images where they can be executed; for container runtimes that mount image volumes `noexec`."""
    if shape.delivery == "mount":
        return []
    names = ["tools", *(f"mount-{index}" for index in range(len(plan.mounts)))]
    # Programs there may be executed, but read by their owner alone: by root, who needs no capability for it.
    security = {**_security(shape), "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    return [
        {
            "name": "deliver",
            "image": shape.tools,
            "imagePullPolicy": "IfNotPresent",
            "command": [*OWN_INTERPRETER, "deliver"],
            "securityContext": security,
            "resources": _resources("50m", "1", _OWN_MB, _STAGE_MB),
            "volumeMounts": [
                _read_only(CODE, "code"),
                *(_read_only(f"{IMAGES}/{name}", name) for name in names),
                {"name": "delivered", "mountPath": DELIVERED},
            ],
        }
    ]


def _security(shape: Shape) -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": shape.uid,
        "runAsGroup": shape.uid,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(request: str, limit: str, memory_mb: int, disk_mb: int) -> Json:
    fixed = {"memory": f"{memory_mb}Mi", "ephemeral-storage": f"{disk_mb}Mi"}
    return {"requests": {"cpu": request, **fixed}, "limits": {"cpu": limit, **fixed}}


def _read_only(path: str, volume: str, below: str = "") -> Json:
    return {"name": volume, "mountPath": path, "readOnly": True} | ({"subPath": below} if below else {})


def _volumes(shape: Shape, plan: Plan) -> list[Json]:
    references = [("tools", shape.tools)]
    references += [(f"mount-{index}", reference) for index, (reference, _) in enumerate(plan.mounts)]
    items = [{"key": key, "path": path} for key, path in sorted(plan.files.items())]
    volumes: list[Json] = [
        {"name": "code", "configMap": {"name": plan.config_map, "defaultMode": 0o444, "items": items}},
        {"name": "signal", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "stage", "emptyDir": {"sizeLimit": f"{_STAGE_MB}Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shape.shm_mb}Mi"}},
        {"name": "room", **_room(shape, plan.spec.disk_mb)},
    ]
    volumes += [
        {"name": name, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        for name, reference in references
    ]
    if shape.delivery == "copy":
        volumes.append({"name": "delivered", "emptyDir": {}})
    return volumes


def _room(shape: Shape, disk_mb: int) -> Json:
    size = {"sizeLimit": f"{disk_mb}Mi"} if disk_mb else {}
    if shape.storage == "tmpfs":
        return {"emptyDir": {"medium": "Memory", **size}}
    if shape.storage == "node":
        return {"emptyDir": size}
    if not disk_mb:
        raise SandboxError("a volume of its own needs a size: set sandbox.disk_mb, and verify.disk_mb")
    claim: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{disk_mb}Mi"}}}
    if shape.storage_class is not None:
        claim["storageClassName"] = shape.storage_class
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
