"""A root folder as an image of one layer, in a folder of OCI's layout that skopeo reads.

The layer is compressed by gzip already: out of an uncompressed one, and out of a store of podman's, the versions that
Debian 12 has cannot make zstd:chunked of every program ("short write"). Invariant: the same folder gives the same
bytes; the mark of the image store (`.complete`) is left out.
"""

import hashlib
import json
import platform
import zlib
from pathlib import Path
from typing import Any

from engine.core.errors import SandboxError
from engine.core.processes import run_checked
from engine.core.threads import in_thread
from engine.sandbox.tools import host_path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
"""Machine → what image configurations call it; others bear the same name."""
_TAR = ("tar", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--xattrs", "--xattrs-include=*")
_FLAGS = ("--numeric-owner", "--sort=name", "--exclude=./.complete")
_KINDS = "application/vnd.oci.image"
_GZIP = 31
"""zlib's `wbits` for a gzip file, whose head then names no time."""
_CHUNK = 1 << 20


def architecture() -> str:
    """This machine's, as image configurations call it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


async def write_layout(root: Path, folder: Path, *, fast: bool) -> None:
    """Write the image of `root` into the new folder; `fast`: its compression is of no account. Raises SandboxError."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    archive = folder / "layer.tar"
    code, output = await run_checked(
        [*_TAR, *_FLAGS, "-C", str(root), "-cf", str(archive), "."],
        environment={"PATH": host_path(), "LC_ALL": "C.UTF-8"},
    )
    if code != 0:
        raise SandboxError(f"{root} cannot be packed: {' '.join(output.split())[-300:]}")
    await in_thread(_finish, archive, folder, blobs, 1 if fast else 6)


def _finish(archive: Path, folder: Path, blobs: Path, level: int) -> None:
    packed = folder / "layer.tar.gz"
    contents = _compress(archive, packed, level)
    archive.unlink()
    with packed.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    packed.rename(blobs / name)
    layer = {"mediaType": f"{_KINDS}.layer.v1.tar+gzip", "digest": f"sha256:{name}"}
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{contents}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_KINDS}.manifest.v1+json",
        "config": _put(blobs, config, "config.v1+json"),
        "layers": [layer | {"size": (blobs / name).stat().st_size}],
    }
    index = {"schemaVersion": 2, "manifests": [_put(blobs, manifest, "manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def _compress(source: Path, target: Path, level: int) -> str:
    """Returns the sha256 of what was compressed."""
    digest, packer = hashlib.sha256(), zlib.compressobj(level, wbits=_GZIP)
    with source.open("rb") as plain, target.open("wb") as packed:
        while data := plain.read(_CHUNK):
            digest.update(data)
            packed.write(packer.compress(data))
        packed.write(packer.flush())
    return digest.hexdigest()


def _put(blobs: Path, value: Any, kind: str) -> dict[str, Any]:
    data = json.dumps(value, sort_keys=True).encode()
    name = hashlib.sha256(data).hexdigest()
    (blobs / name).write_bytes(data)
    return {"mediaType": f"{_KINDS}.{kind}", "digest": f"sha256:{name}", "size": len(data)}
