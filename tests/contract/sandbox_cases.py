"""What the sandbox suites share: one configuration, one image, and looking at the machine from outside."""

import os
import socket
import subprocess
import textwrap
from pathlib import Path

import yaml

from engine.core.specs import ExecResult, ImageSpec, SandboxSpec
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime
from engine.sandbox.podman import PodmanRuntime
from engine.sandbox.podman_service import command as podman_command
from engine.sandbox.podman_service import environment as podman_environment

ROOT = Path(__file__).resolve().parents[2]
WORKDIR = "/testbed"
SETTINGS = {
    "uid": 10001,
    "storage": "loop",
    "disk_mb": 256,
    "pids": 64,
    "shm_mb": 64,
    "require_limits": True,
    "network": {},
}
RUNTIMES = {"bubblewrap": BubblewrapRuntime, "podman": PodmanRuntime}


def make_runtime(name: str, **changes: object) -> LocalRuntime:
    return RUNTIMES[name](**SETTINGS | {"output_limit_bytes": 65536, "grace_s": 600, "keep_s": 86400} | changes)


def task_image() -> ImageSpec:
    image = yaml.safe_load((ROOT / "configs/tasks/release_pairs.yaml").read_text())["image"]
    return ImageSpec(
        name=image["name"], suite=image["suite"], packages=tuple(image["packages"]), pip=tuple(image["pip"])
    )


def specification(name: str = "trial", **changes: object) -> SandboxSpec:
    values: dict[str, object] = {
        "name": name,
        "image": task_image(),
        "mounts": (),
        "workdir": WORKDIR,
        "environment": {"FROM_SPEC": "yes"},
        "memory_mb": 256,
        "cpus": 1.0,
        "pids": 64,
        "disk_mb": 64,
    }
    return SandboxSpec(**values | changes)  # type: ignore[arg-type]


async def shell(
    sandbox: ContainedSandbox, script: str, *, timeout_s: float = 60, stdin: bytes = b"", cwd: str = WORKDIR
) -> ExecResult:
    return await sandbox.exec(["/bin/sh", "-c", script], environment={}, cwd=cwd, timeout_s=timeout_s, stdin=stdin)


async def python(sandbox: ContainedSandbox, script: str) -> str:
    result = await sandbox.exec(
        ["python3", "-c", textwrap.dedent(script)], environment={}, cwd=WORKDIR, timeout_s=60, stdin=b""
    )
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode().strip()


# ---------------------------------------------------------------- looking from outside


def traces(name: str) -> list[str]:
    """Mounts, control groups and containers of a sandbox whose room is named so."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"/{name}" in line]
    for folder, names, _ in os.walk("/sys/fs/cgroup"):  # a glob fails when another run's group goes meanwhile
        found += [f"{folder}/{group}" for group in names if folder.endswith("/lego-rl") and group.startswith(name)]
    if not make_runtime("podman").problems():
        arguments = [*podman_command(), "ps", "--all", "--noheading", "--format", "{{.Names}}"]
        names = subprocess.run(arguments, env=podman_environment(), capture_output=True, text=True, check=True)
        found += [line for line in names.stdout.splitlines() if line.startswith(f"lego-rl-{name}")]
    return found


def processes_with(text: str) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if line == text]


def own_address() -> str:
    """An address of this host that another machine would use, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
