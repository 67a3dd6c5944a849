"""Source distributions from the package index, by name, release and sha256.

Invariant: `cache/sdists/SHA256/FILE` holds exactly those bytes or does not exist (`engine.core.archives` fetches it).
Refuses archives with links, special files or paths that leave the archive's one top folder.
"""

import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from engine.core.archives import Archive, download
from engine.core.contracts import Say
from engine.core.errors import PatchError
from engine.core.patch import safe_path
from engine.core.paths import cache_dir
from engine.core.temporary import temporary_folder
from engine.core.together import side_by_side

_MAX_BYTES = 64 << 20
"""Unpacked size beyond which an archive is refused."""
_AT_ONCE = 2
"""pip processes at one time: each prepares metadata, which is work for the processor."""
_VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".bzr"})


@dataclass(frozen=True, kw_only=True)
class Sdist(Archive):
    """One source distribution."""

    @property
    def path(self) -> Path:
        return cache_dir() / "sdists" / self.sha256 / self.file


async def fetch(sdists: Iterable[Sdist], say: Say) -> None:
    """Bring what is not in the cache. Raises RunError with pip's own words."""
    missing = [sdist for sdist in dict.fromkeys(sdists) if not sdist.path.is_file()]

    async def one(batch: list[Sdist]) -> None:
        say(f"sdists: fetching {', '.join(f'{item.package} {item.version}' for item in batch)}")
        await _download(batch)

    await side_by_side([partial(one, batch) for batch in _batches(missing)], _AT_ONCE)


def _batches(sdists: list[Sdist]) -> list[list[Sdist]]:
    """One release of a package a batch: pip takes no two of one package in one call."""
    batches: list[list[Sdist]] = []
    for sdist in sdists:
        free = next((batch for batch in batches if all(item.package != sdist.package for item in batch)), None)
        if free is None:
            batches.append(free := [])
        free.append(sdist)
    return batches


async def _download(batch: list[Sdist]) -> None:
    with temporary_folder("fetch", cache_dir() / "sdists") as folder:
        await download(batch, folder)
        for sdist in batch:
            sdist.path.parent.mkdir(parents=True, exist_ok=True)
            (folder / sdist.file).replace(sdist.path)


def unpack(sdist: Sdist) -> dict[str, tuple[bytes, bool]]:
    """Relative POSIX path → (contents, executable), without the archive's top folder and without what a version
    control system left in it (a submodule's `.git`). Raises PatchError."""
    tree: dict[str, tuple[bytes, bool]] = {}
    total = 0
    with tarfile.open(sdist.path, "r:gz") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[1:]
            if member.isdir() or any(part in _VERSION_CONTROL for part in parts):
                continue
            inner = str(PurePosixPath(*parts))
            total += member.size
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None or total > _MAX_BYTES or safe_path(inner) in tree:
                raise PatchError(f"{sdist.file}: {member.name} is a link, a double or too large")
            tree[inner] = (stream.read(), bool(member.mode & 0o100))
    return tree
