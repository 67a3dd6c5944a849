"""Measures how images reach a sandbox (`job=delivery`): over a registry, or from a folder that is there already.

Invariant: each measurement begins with an empty store of its own and removes it; of what it measures nothing is in the
cache of the machine's own images, and no file's contents are in memory when they are read. A registry on loopback has
no distance: what a real one adds is told by the bytes.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config.built import Built
from engine.core.contracts import ImageStore, Say
from engine.core.paths import cache_dir
from engine.core.specs import ImageSpec, SandboxSpec
from engine.core.temporary import temporary_folder
from engine.core.threads import in_thread
from engine.observe.delivery import Delivery, Part
from engine.sandbox.images import DebianImageStore
from engine.sandbox.loopback_registry import Counted
from engine.sandbox.pulled import Layer, lay
from engine.sandbox.references import Reference

_CHUNK = 1 << 20
_MEMORY_MB = 1024


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The image that is measured, and another one that differs in some files."""

    first: Path
    second: Path


@dataclass(frozen=True, kw_only=True)
class AtHand:
    """An image store whose images are folders that somebody else has made."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    """By the image's name."""

    def path(self, spec: ImageSpec) -> Path:
        return self.folders[spec.name]

    async def build(self, spec: ImageSpec, say: Say) -> Path:  # noqa: ARG002 (the store's Protocol)
        return self.path(spec)


def change_some(root: Path, target: Path, share: float) -> None:
    """Make `target` a root with the files of `root`, of which `share` have one byte more. Nothing else is copied."""
    target.mkdir()
    lay([Layer(folder=root, table={})], target)
    target.chmod(0o755)
    every = max(1, round(1 / share))
    for path in list(_files(target))[::every]:
        status, contents = path.stat(), path.read_bytes()
        path.unlink()  # the file is the other root's too
        path.write_bytes(contents + b"\n")
        os.chown(path, status.st_uid, status.st_gid)
        path.chmod(stat.S_IMODE(status.st_mode))


async def from_registry(
    built: Built, images: Sequence[Reference], counted: Counted | None, mode: str, plain_http: bool, say: Say
) -> Delivery:
    """Deliver two images, one after the other, into a store of their own."""
    parts: list[Part] = []
    place = cache_dir() / "images"  # where hard links can be made, and job=reap looks
    with temporary_folder("delivery", place) as folder:
        store = DebianImageStore(folder / "images", plain_http=plain_http)
        for name, reference in zip(("first", "second"), images, strict=True):
            spec = ImageSpec(name=name, suite=None, packages=(), pip=(), reference=str(reference))
            passed, disk = counted.passed if counted else 0, await in_thread(_allocated, folder)
            seconds = await _ready(built, spec, store, say)
            parts.append(
                Part(
                    seconds=seconds,
                    network_bytes=counted.passed - passed if counted else None,
                    disk_bytes=await in_thread(_allocated, folder) - disk,
                )
            )
            if name == "first":
                speed = await in_thread(_read, store.path(spec))
    return Delivery(mode=mode, first=parts[0], second=parts[1], read_mb_s=speed)


async def from_folder(built: Built, roots: Roots, mode: str, say: Say) -> Delivery:
    """The same of folders that are at hand: nothing is fetched or written."""
    store = AtHand(folders={"first": roots.first, "second": roots.second})
    parts: list[Part] = []
    for name in ("first", "second"):
        await in_thread(_forget, store.folders[name])
        spec = ImageSpec(name=name, suite=None, packages=(), pip=())
        seconds = await _ready(built, spec, store, say)
        parts.append(Part(seconds=seconds, network_bytes=0, disk_bytes=0))
    return Delivery(mode=mode, first=parts[0], second=parts[1], read_mb_s=await in_thread(_read, roots.first))


async def _ready(built: Built, spec: ImageSpec, store: ImageStore, say: Say) -> float:
    """Seconds until a sandbox over the image has run a command; what `store` lacks of it is fetched meanwhile."""
    await built.sandbox.start(store, f"delivery-{built.hash}")
    try:
        begun = time.monotonic()
        await store.build(spec, say)
        sandbox = await built.sandbox.create(_specification(built.sandbox, spec))
        await sandbox.exec(["/bin/true"], environment={}, cwd="/", timeout_s=60.0, stdin=b"")
        return time.monotonic() - begun
    finally:
        await built.sandbox.stop()  # and so the sandbox


def _specification(sandbox: Any, image: ImageSpec) -> SandboxSpec:
    return SandboxSpec(
        name="delivery",
        image=image,
        mounts=(),
        workdir="/tmp",  # noqa: S108 (of the sandbox)
        environment={},
        memory_mb=_MEMORY_MB,
        cpus=1.0,
        pids=sandbox.pids,
        disk_mb=sandbox.disk_mb,
    )


def _files(root: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(root):
        folders.sort()
        yield from (path for file in sorted(files) if stat.S_ISREG((path := Path(name) / file).lstat().st_mode))


def _allocated(folder: Path) -> int:
    """Bytes on the disk, those of several names once."""
    sizes = {}
    for name, folders, files in os.walk(folder):
        for entry in (*folders, *files):
            status = (Path(name) / entry).lstat()
            sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _forget(root: Path) -> None:
    """Have the kernel drop the contents of all files from memory, these alone: others work on this machine."""
    for path in _files(root):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fdatasync(descriptor)  # what is not on the disk yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _read(root: Path) -> float:
    """10⁶ bytes a second."""
    _forget(root)
    size, begun = 0, time.monotonic()
    for path in _files(root):
        with path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK):
                size += len(data)
    return size / 1e6 / (time.monotonic() - begun)
