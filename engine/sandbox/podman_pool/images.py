"""What sandboxes are made of, brought to a host once: images and runtimes by name and digest, our own code by content.

A folder of the image store is named NAME-DIGEST and becomes `localhost/lego-rl/NAME:DIGEST`; any other folder is named
by a digest over all that is in it. Invariants: nothing is ever pulled; whoever wants an image that is on its way waits
for that one upload; one that breaks off leaves no image, because the host takes a stream whole or not at all.
"""

import asyncio
import hashlib
import io
import logging
import os
import re
import stat
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.processes import end
from engine.sandbox.podman_pool.api import Api
from engine.sandbox.podman_pool.inpod import ENTRY, MODULES

_log = logging.getLogger(__name__)
_PREFIX = "localhost/lego-rl"
_BUILT = re.compile(r"([a-z0-9]+(?:[._-][a-z0-9]+)*)-([0-9a-f]{8,64})")
_MARK = ".complete"
_PIECE = 1 << 18
_TELL_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What is the same for all sandboxes of a run."""

    tools: str
    """Name of the image that holds our Python."""
    folder: Path
    code: str
    """Name of our code's image."""
    layer: bytes


@dataclass(frozen=True, kw_only=True)
class Mounted:
    """A folder of this machine, as an image on hosts."""

    name: str
    source: Path
    target: str


def reference(folder: Path) -> str:
    """Name of a folder's image; reads all of the folder where its name does not tell. Raises SandboxError."""
    named = _BUILT.fullmatch(folder.name)
    if named and (folder / _MARK).is_file():
        return f"{_PREFIX}/{named[1]}:{named[2]}"
    try:
        return f"{_PREFIX}/folder:{_digest(folder)}"
    except OSError as error:
        raise SandboxError(f"cannot read {error.filename or folder}: {error.strerror}") from error


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        found.update(f"\0{path.relative_to(folder)}\0{status.st_mode:o}\0{status.st_uid}\0{status.st_gid}\0".encode())
        if stat.S_ISLNK(status.st_mode):
            found.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:24]


def code() -> tuple[str, bytes]:
    """Our code's image: its name and its layer, of a few dozen kilobytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        contents = {"pod.py": ENTRY.encode()}
        for module in MODULES:
            package, _, name = module.rpartition("/")
            contents[module] = (resources.files(package.replace("/", ".")) / name).read_bytes()
        for path in sorted({parent for name in contents for parent in map(str, Path(name).parents)} - {"."}):
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path, content in sorted(contents.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return f"{_PREFIX}/code:{hashlib.sha256(packed.getvalue()).hexdigest()[:24]}", packed.getvalue()


class HostImages:
    """The images of one host."""

    def __init__(self, host: str, api: Api) -> None:
        self._host, self._api = host, api
        self._there: dict[str, asyncio.Task[None]] = {}

    async def have(self, name: str, source: Path | bytes) -> None:
        """Bring an image there unless it is: a folder, or a layer. Raises SandboxError."""
        task = self._there.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._there[name] = asyncio.create_task(self._bring(name, source))
        await asyncio.shield(task)

    def forget(self) -> None:
        """Look again whether it is there: the host was away, or lacks one."""
        self._there = {name: task for name, task in self._there.items() if not task.done()}

    async def close(self) -> None:
        """Break off what is on its way."""
        for task in self._there.values():
            task.cancel()
        await asyncio.gather(*self._there.values(), return_exceptions=True)

    async def _bring(self, name: str, source: Path | bytes) -> None:
        if await self._api.exists("images", name):
            return
        if isinstance(source, bytes):
            await self._api.upload("/images/import", {"reference": name}, _once(source))
            return
        begun = time.monotonic()
        _log.info("host %s: image %s is brought there", self._host, name)
        await self._api.upload("/images/import", {"reference": name}, self._tar(name, source))
        _log.info("host %s: image %s is there after %.0f s", self._host, name, time.monotonic() - begun)

    async def _tar(self, name: str, folder: Path) -> AsyncIterator[bytes]:
        """A folder as one layer, by the machine's own tar; what it cannot read breaks the upload off."""
        command = ("tar", "--numeric-owner", "--sort=name", f"--exclude=./{_MARK}", "-C", str(folder), "-cf", "-", ".")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None and process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        sent, told = 0, time.monotonic()
        try:
            while piece := await process.stdout.read(_PIECE):
                sent += len(piece)
                if time.monotonic() - told > _TELL_S:
                    told = time.monotonic()
                    _log.info("host %s: image %s: %d MB are there", self._host, name, sent >> 20)
                yield piece
            if await process.wait() != 0:
                said = (await errors).decode(errors="replace").strip().splitlines()
                raise SandboxError(f"{folder} cannot be packed: {said[-1] if said else process.returncode}")
        finally:
            errors.cancel()
            await asyncio.gather(errors, return_exceptions=True)
            if process.returncode is None:
                await end(process)


async def _once(contents: bytes) -> AsyncIterator[bytes]:
    yield contents
