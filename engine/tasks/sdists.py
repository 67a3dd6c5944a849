"""Source distributions from the package index, by name, release and sha256.

Invariant: `cache/sdists/SHA256/FILE` holds exactly those bytes or does not exist. Fetched by the ordinary pip client
from whatever index this machine's pip is configured for; pip itself checks each hash before it looks into an archive.
Refuses archives with links, special files or paths that leave the archive's one top folder.
"""

import hashlib
import os
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from engine.core.contracts import Say
from engine.core.errors import PatchError, RunError
from engine.core.patch import safe_path
from engine.core.paths import cache_dir
from engine.core.processes import run_checked
from engine.core.temporary import temporary_folder
from engine.core.together import side_by_side

_MAX_BYTES = 64 << 20
"""Unpacked size beyond which an archive is refused."""
_AT_ONCE = 2
"""pip processes at one time: each prepares metadata, which is work for the processor."""
_VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".bzr"})


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """One source distribution."""

    package: str
    version: str
    file: str
    sha256: str

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
        requirements = folder / "requirements.txt"
        requirements.write_text("".join(f"{s.package}=={s.version} --hash=sha256:{s.sha256}\n" for s in batch))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", ",".join(sdist.package for sdist in batch), "--require-hashes"]
        command += ["--dest", str(folder), "--requirement", str(requirements)]
        # Also its scratch: pip that is killed leaves what it unpacked.
        code, output = await run_checked(command, environment={**os.environ, "TMPDIR": str(folder)})
        if code != 0:
            last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
            names = " ".join(f"{sdist.package}=={sdist.version}" for sdist in batch)
            raise RunError(
                f"pip could not download the sdists of {names}: {last}; check `pip download` on this machine"
            )
        for sdist in batch:
            _keep(folder / sdist.file, sdist)


def _keep(fetched: Path, sdist: Sdist) -> None:
    if not fetched.is_file() or hashlib.sha256(fetched.read_bytes()).hexdigest() != sdist.sha256:
        raise RunError(f"pip did not bring {sdist.file} with sha256 {sdist.sha256}; another file stands in the index")
    sdist.path.parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(sdist.path)


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
