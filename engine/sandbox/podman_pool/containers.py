"""What is asked of podman for one sandbox, as plain data: two containers that share a network without a way out.

    NAME-relay   has the network made (a loopback and no more), leads to the model's proxy, hears what is tried in vain
    NAME         the task's image with a layer of its own that may be written, process 1 of ours

Invariant: nothing of the host is mounted; images come mounted read-only, and are never pulled; the agent's user has no
capability and no way to gain rights. Labels say whose a container is, so that it is found again.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.core.specs import SandboxSpec
from engine.sandbox.remote.within import CODE, TOOLS, interpreter

Json = dict[str, Any]
Storage = Literal["layer", "quota"]

OWNER, SESSION, SANDBOX, PART = "lego-rl.owner", "lego-rl.session", "lego-rl.sandbox", "lego-rl.part"
"""Labels; the part is `relay` or `task`, and only this runtime's containers have one."""
_PERIOD_US = 100_000
_OWN_PIDS = 4
"""Process 1, and ours that enter beside a command."""
_RELAY_MB, _RELAY_PIDS = 192, 16
_OPENING = ("NET_ADMIN", "NET_RAW", "SETUID", "SETGID")
"""Of the relay until it listens: routes, a packet socket, and the change to a user without any."""
_ENTERING = ("SETUID", "SETGID", "SETPCAP", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER")
"""Of our own processes in the task's container: to become the agent's user, end its processes, handle its files."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is the same for all sandboxes of a run."""

    uid: int
    storage: Storage
    shm_mb: int
    lease_s: float
    machine: str
    """As `platform.machine()` names it; hosts are of this kind, because images are built for it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One sandbox."""

    name: str
    owner: str
    session: str
    spec: SandboxSpec
    image: str
    tools: str
    code: str
    mounts: tuple[tuple[str, str], ...]
    """Image → where it is seen."""


def object_name(text: str, unique: str) -> str:
    """A container's name that begins with something readable."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "x"
    return f"lego-rl-{plain}-{unique}"


def session_name(owner: str, unique: str) -> str:
    """Unique among all sessions."""
    return f"{hashlib.sha256(owner.encode()).hexdigest()[:8]}-{unique}"


def relay(shape: Shape, plan: Plan) -> Json:
    """The body of `POST /containers/create` for the relay."""
    return {
        **_common(plan, "relay", [*interpreter(shape.machine), "relay", f"{shape.lease_s:g}"]),
        "name": f"{plan.name}-relay",
        "image": plan.tools,
        "image_volumes": [_volume(plan.tools, TOOLS), _volume(plan.code, CODE)],
        "netns": {"nsmode": "none"},
        "stdin": True,
        "read_only_filesystem": True,
        "cap_add": list(_OPENING),
        "resource_limits": _limits(_RELAY_MB, 1.0, _RELAY_PIDS),
    }


def task(shape: Shape, plan: Plan) -> Json:
    """The same for the task's container, whose network is the relay's."""
    spec = plan.spec
    request = json.dumps({"uid": shape.uid, "workdir": spec.workdir})
    body = {
        **_common(plan, "task", [*interpreter(shape.machine), "init", request]),
        "name": plan.name,
        "image": plan.image,
        "image_volumes": [
            _volume(plan.tools, TOOLS),
            _volume(plan.code, CODE),
            *(_volume(image, target) for image, target in plan.mounts),
        ],
        "netns": {"nsmode": "container", "value": f"{plan.name}-relay"},
        "cap_add": list(_ENTERING),
        "shm_size": shape.shm_mb << 20,
        "resource_limits": _limits(spec.memory_mb, spec.cpus, spec.pids + _OWN_PIDS),
    }
    if shape.storage == "quota" and spec.disk_mb:
        body["storage_opts"] = {"size": f"{spec.disk_mb}M"}
    return body


def _common(plan: Plan, part: str, command: Sequence[str]) -> Json:
    return {
        "labels": {OWNER: plan.owner, SESSION: plan.session, SANDBOX: plan.spec.name, PART: part},
        "entrypoint": [],
        "command": list(command),
        "user": "0:0",
        "work_dir": "/",
        "pull_policy": "never",
        "cap_drop": ["ALL"],
        "no_new_privileges": True,
        "pidns": {"nsmode": "private"},
        "ipcns": {"nsmode": "private"},
        "utsns": {"nsmode": "private"},
        "cgroupns": {"nsmode": "private"},
        "hostname": "sandbox",
        "use_image_hosts": True,
        "unsetenvall": True,
        "systemd": "false",
        "log_configuration": {"driver": "none"},
        "stop_timeout": 0,
    }


def _limits(memory_mb: int, cpus: float, pids: int) -> Json:
    memory = memory_mb << 20
    return {
        "memory": {"limit": memory, "swap": memory},
        "cpu": {"quota": int(cpus * _PERIOD_US), "period": _PERIOD_US},
        "pids": {"limit": pids},
    }


def _volume(image: str, target: str) -> Mapping[str, Any]:
    return {"Source": image, "Destination": target, "ReadWrite": False}
