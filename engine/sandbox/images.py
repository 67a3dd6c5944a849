"""Root file systems and package folders, built once and kept by content under the user's cache.

An image is decided by its ImageSpec and the builder's format version alone, so the same specification is the same
folder for every run and every process of this machine. It appears whole or not at all: it is built in a temporary
folder beside it under a lock, marked `.complete`, then renamed. Nothing of this machine's settings (mirrors,
certificates, resolver, package indexes) stays in it. A build has a network of its own, which reaches the sources of
packages that this machine is configured with and what the configuration adds; an attempt at any other place ends it.
What is an image of a registry is pulled (`pulled.py`), and so is what another machine has built and pushed, where a
registry is given; the rest is built here.

Refuses: a Debian root without root rights or debootstrap; Python packages with compiled parts in a plain package
folder, because the interpreter that will load them is not known; npm packages without npm, or in a Debian root; an
image of a registry with anything beside it, or without podman and skopeo.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from engine.core.contracts import Say
from engine.core.errors import ConfigError
from engine.core.paths import cache_dir
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.core.threads import to_the_end
from engine.core.whole import move_into_place
from engine.sandbox import image_build
from engine.sandbox.image_tools import ImageTools, missing_tools
from engine.sandbox.pulled import pull
from engine.sandbox.references import Reference, parse_reference
from engine.sandbox.tools import find

_Fill = Callable[[Path, Path], Awaitable[dict[str, object]]]
"""Fills a folder, beside a log; returns what is to be said of it beyond its specification."""

FORMAT = 1
"""Raise it when the builder makes something else from the same specification."""

_LAYERS = ".layers"
"""Folder beside the images: layers of those that were pulled, which share them."""


class DebianImageStore:
    """The ImageStore: images under `cache_dir()/images/NAME-DIGEST`, each folder being the root itself.

    `folder`: another place for them; None: the cache. `reach`: what builds reach beside this machine's own sources
    (`engine.core.reach`). `registry`: where images that were built elsewhere lie, as `NAME:DIGEST`; None: each is built
    here. `plain_http`: whether HTTP is spoken to registries beyond loopback."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        reach: Sequence[str] = (),
        registry: str | None = None,
        plain_http: bool = False,
    ) -> None:
        self._folder, self._registry, self._plain_http = folder, registry, plain_http
        self._reach = tuple(reach)

    def tools(self) -> ImageTools:
        """podman and skopeo over the layers of this store."""
        return ImageTools(self._place() / _LAYERS, plain_http=self._plain_http)

    def _place(self) -> Path:
        return self._folder or cache_dir() / "images"

    def path(self, spec: ImageSpec) -> Path:
        """Folder of the image's root; `(path / ".complete")` exists once it is whole."""
        return self._place() / f"{spec.name}-{digest(spec)}"

    def has(self, spec: ImageSpec) -> bool:
        """Whether the image is built."""
        return (self.path(spec) / ".complete").is_file()

    def problems(self, specs: Sequence[ImageSpec]) -> tuple[ConfigError, ...]:
        """What keeps the images among `specs` that are not built yet from being built on this machine."""
        missing = [spec for spec in specs if not self.has(spec)]
        return tuple(problem for spec in missing for problem in _build_problems(spec))

    async def unavailable(self, specs: Sequence[ImageSpec]) -> list[ConfigError]:
        """The same of those that no registry has either. Raises SandboxError where the registry fails."""
        found: list[ConfigError] = []
        for spec in specs:
            problems = self.problems([spec])
            if problems and await self._pushed(spec) is None:
                found += problems
        return found

    async def build(self, spec: ImageSpec, say: Say) -> Path:
        """Build unless present; returns `path(spec)`.

        Raises ConfigError where this machine lacks a tool or right, SandboxError (with the log's path) where the build
        itself fails."""
        target = self.path(spec)
        if self.has(spec):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        async with _lock(target.with_name(f".{target.name}.lock"), f"image {spec.name}", say):
            if not self.has(spec):
                pushed = await self._pushed(spec)
                for problem in () if pushed else _build_problems(spec):
                    raise problem
                fill = (
                    partial(image_build.built, spec, say, self._reach)
                    if pushed is None
                    else partial(self._pulled, pushed, say)
                )
                begun = time.monotonic()
                await _make(spec, target, fill)
                say(f"image {spec.name}: {'pulled' if pushed else 'built'} in {time.monotonic() - begun:.0f} s")
        return target

    async def _pushed(self, spec: ImageSpec) -> Reference | None:
        """The image in a registry, for one that is pulled."""
        key = f"image {spec.name}"
        if spec.reference is not None:
            for problem in _reference_problems(spec):
                raise problem
            return parse_reference(key, spec.reference)
        if self._registry is None:
            return None
        for problem in missing_tools(key, self._registry):
            raise problem
        reference = parse_reference(key, f"{self._registry}/{spec.name}:{digest(spec)}")
        return None if await self.tools().manifest(reference) is None else reference

    async def _pulled(self, pushed: Reference, say: Say, root: Path, _log: Path) -> dict[str, object]:
        """Pull what was pushed; says which manifest that was."""
        manifest = await pull(pushed, root, self.tools(), self._place() / _LAYERS, say)
        (root / ".complete").unlink(missing_ok=True)  # the layers' own, if one has it: never written through
        return {"manifest": pushed.at(manifest)}


def digest(spec: ImageSpec) -> str:
    """12 hex digits over all that decides an image's contents; its name and the order of packages do not."""
    content = {
        "format": FORMAT,
        "machine": platform.machine(),
        "suite": spec.suite,
        "packages": sorted(set(spec.packages)),
        "pip": sorted(set(spec.pip)),
        "python": "" if spec.suite or spec.npm else f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    if spec.npm:  # in no older image's digest
        content["npm"] = sorted(set(spec.npm))
    if spec.reference:
        content |= {"reference": spec.reference, "python": ""}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _build_problems(spec: ImageSpec) -> list[ConfigError]:
    if spec.reference is not None:
        return _reference_problems(spec)
    key, found = f"image {spec.name}", []
    if spec.npm and (spec.suite or spec.pip):
        problem = "npm packages go into a plain folder of their own"
        found.append(ConfigError(key, spec.npm, problem, "name no suite and no Python packages beside them"))
    elif spec.npm and find("npm") is None:
        way = "apt-get install -y --no-install-recommends npm, or https://nodejs.org"
        found.append(ConfigError(key, spec.npm, "npm is not installed", way))
    if spec.suite is None:
        if spec.packages:
            found.append(ConfigError(key, spec.packages, "Debian packages without a suite", "name a suite"))
        if (spec.pip or spec.npm) and os.geteuid() != 0:
            problem = "only root can close a build's network to all but the sources of packages"
            found.append(ConfigError(key, spec.pip or spec.npm, problem, "run as root"))
        return found
    if os.geteuid() != 0:
        found.append(ConfigError(key, spec.suite, "a Debian root can only be built by root", "run as root"))
    for tool, package in (("debootstrap", "debootstrap"), ("nsenter", "util-linux"), ("chroot", "coreutils")):
        if find(tool) is None:
            way = f"apt-get install -y --no-install-recommends {package}"
            found.append(ConfigError(key, spec.suite, f"{tool} is not installed", way))
    return found


def _reference_problems(spec: ImageSpec) -> list[ConfigError]:
    key, text = f"image {spec.name}", spec.reference or ""
    if spec.suite or spec.packages or spec.pip or spec.npm:
        way_out = "name no suite and no packages beside it"
        return [ConfigError(key, text, "an image of a registry is taken as it is", way_out)]
    try:
        parse_reference(key, text)
    except ConfigError as error:
        return [error]
    return missing_tools(key, text)


@contextlib.asynccontextmanager
async def _lock(path: Path, what: str, say: Say) -> AsyncIterator[None]:
    """Hold an exclusive lock between processes; waiting neither blocks the event loop nor outlives cancellation."""
    with path.open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say(f"{what}: it is being built already, waiting")
                waiting = True
                await asyncio.sleep(0.5)
        yield


async def _make(spec: ImageSpec, target: Path, fill: _Fill) -> None:
    """Have a temporary folder filled, and rename it; called under the image's lock."""
    if target.exists():
        await asyncio.to_thread(shutil.rmtree, target)
    log = target.with_name(f"{target.name}.log")
    log.unlink(missing_ok=True)
    with temporary_folder("image", target.parent) as place:
        root = place / "root"
        root.mkdir()
        root.chmod(0o755)  # it becomes `/` of sandboxes whose user is not root: the umask must not close it
        described = _description(spec) | await fill(root, log)
        (root / ".complete").write_text(json.dumps(described, indent=1) + "\n")
        await to_the_end(asyncio.to_thread(move_into_place, root, target))


def _description(spec: ImageSpec) -> dict[str, object]:
    return {
        "format": FORMAT,
        "name": spec.name,
        "suite": spec.suite,
        "packages": sorted(spec.packages),
        "pip": sorted(spec.pip),
        "npm": sorted(spec.npm),
    }
