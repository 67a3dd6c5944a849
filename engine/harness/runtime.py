"""Self-contained runtimes for harnesses written in Python, and how a launcher is started in one, cold or warm.

A runtime is a Debian root with its own Python, mounted read-only; it is started through its own dynamic loader, so it
needs nothing of the task's image and leaves nothing in the agent's shell (no PATH, PYTHONHOME or PYTHONPATH).
"""

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

from engine.core import guest
from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError
from engine.core.records import Task
from engine.core.specs import ImageSpec, Launch, Mount, WarmStart

Start = Literal["warm", "cold"]
RUNTIME, FOLDER, REPORT = guest.RUNTIME, guest.FOLDER, guest.REPORT
_PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates")
_LOADERS = {
    "x86_64": ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
"""Machine → Debian's multiarch folder and the dynamic loader in it."""
_MAIN = """\
from launchers import {launcher}, process

process.start({launcher})
"""
_WARM = """\
from launchers import {launcher}, process


def load():
    process.load({launcher}, "{runtime}")


def run(command, environment):
    process.start_warm({launcher}, command, environment)
"""


def python_runtime(name: str, version: str, wanted: Sequence[str], packages: Sequence[str] = ()) -> ImageSpec:
    """Debian trixie for its Python 3.13, with the Python packages `wanted` at one version.

    All that they need is pinned too, as tried with them, where the project keeps a lock (`locks/NAME-VERSION.txt`).
    `packages` are Debian packages beside Python's."""
    pip = tuple(f"{package}=={version}" for package in wanted)
    lock = resources.files("engine.harness").joinpath("locks", f"{name}-{version}.txt")
    if lock.is_file():
        lines = (line.strip() for line in lock.read_text(encoding="utf-8").splitlines())
        pip += tuple(line for line in lines if line and not line.startswith("#"))
    return ImageSpec(name=name, suite="trixie", packages=(*_PACKAGES, *packages), pip=pip)


def runtime_mount(spec: ImageSpec, images: ImageStore) -> Mount:
    return Mount(source=images.path(spec), target=RUNTIME)


def runtime_problems(
    key: str, version: str, spec: ImageSpec, images: ImageStore, machines: Collection[str] = _LOADERS
) -> Sequence[ConfigError]:
    """Why the runtime of the harness configured at `key` cannot be mounted; empty when it can."""
    found = []
    if platform.machine() not in machines:
        found.append(ConfigError(key, platform.machine(), "no runtime for this machine", f"use {list(machines)}"))
    if not (images.path(spec) / ".complete").is_file():
        way_out = "run the same command with job=prepare"
        if spec.suite or spec.pip or spec.npm:
            found.append(ConfigError(f"{key}.version", version, "its runtime is not built", way_out))
        else:
            problem = "there is nothing to install, but the empty folder that is mounted instead is not made yet"
            found.append(ConfigError(f"{key}.packages", [], problem, way_out))
    return found


def interpreter() -> tuple[str, ...]:
    """Command that runs a script in the mounted runtime's Python, isolated from environment and current folder."""
    multiarch, loader = _LOADERS[platform.machine()]
    libraries, python = f"{RUNTIME}/usr/lib/{multiarch}", f"{RUNTIME}/usr/bin/python3"
    return (f"{libraries}/{loader}", "--argv0", python, "--library-path", libraries, python, "-I", "-B")


def launch(launcher: str, settings: Mapping[str, Any], task: Task, start: Start) -> Launch:
    """Start module `launcher` of `engine.harness.launchers` with its settings, in the task's repository.

    `settings` must be JSON; `runtime` and `instruction` are added to them."""
    program, settings_path = f"{FOLDER}/launcher", f"{FOLDER}/settings.json"
    files = {settings_path: json.dumps({"runtime": RUNTIME, "instruction": task.instruction, **settings}).encode()}
    source = resources.files("engine.harness.launchers")
    modules = {
        "launchers/__init__.py": b"",
        "launchers/process.py": source.joinpath("process.py").read_bytes(),
        f"launchers/{launcher}.py": source.joinpath(f"{launcher}.py").read_bytes(),
    }
    if start == "warm":
        modules["warm.py"] = _WARM.format(launcher=launcher, runtime=RUNTIME).encode()
        warm = WarmStart(interpreter=interpreter(), folder=program, module="warm", files=modules)
        return Launch(command=(program, settings_path), environment={}, cwd=task.workdir, files=files, warm=warm)
    modules["__main__.py"] = _MAIN.format(launcher=launcher).encode()
    files |= {f"{program}/{name}": content for name, content in modules.items()}
    return Launch(command=(*interpreter(), program, settings_path), environment={}, cwd=task.workdir, files=files)
