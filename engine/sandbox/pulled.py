"""Images of a registry as plain root folders: pulled into a store of layers, then laid over each other by hard links.

The store is podman's, of this project's own, beside the images (`.layers`): layers that images share, and of layers in
the format zstd:chunked the files that they share, are fetched once. A root's files are the store's own (nothing is
copied), and stay when the store is removed. Invariant: what is pulled is the manifest whose digest was asked for, for
this machine's architecture; owners, modes, times, links and attributes are those of the layers, and what an upper layer
removes is not there. Refuses images of another architecture and, with their reference, what a registry refuses.
"""

import base64
import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.core.contracts import Say
from engine.core.errors import SandboxError
from engine.core.threads import in_thread
from engine.sandbox.image_tools import ImageTools, UnknownImage
from engine.sandbox.oci_layout import architecture
from engine.sandbox.references import Reference

_OVERLAY = ("trusted.overlay.", "user.overlay.")
_OPAQUE = tuple(f"{prefix}opaque" for prefix in _OVERLAY)
_TABLE = "=" + base64.b64encode(b"zstd-chunked-manifest").decode()
"""Name by which the store keeps the table of contents of a layer that was fetched in parts."""


async def pull(reference: Reference, root: Path, tools: ImageTools, store: Path, say: Say) -> str:
    """Fill the empty folder `root`; returns the digest of the manifest. Raises SandboxError; `root` is then half-made.

    A tag is resolved once, before anything is fetched, so that no other image can come under its name meanwhile."""
    configuration = await tools.configuration(reference)
    if configuration is None:
        raise UnknownImage(f"image {reference}: the registry has no such image; check the name, or push it (job=push)")
    _check_machine(reference, configuration)
    digest = reference.digest or await tools.digest(reference)
    exact = Reference(host=reference.host, path=reference.path, tag=None, digest=digest)
    say(f"image {exact}: pulling")
    identity = (await tools.podman(exact, "pull", "--quiet", tools.tls(exact), str(exact))).split()[-1]
    (found,) = json.loads(await tools.podman(exact, "image", "inspect", identity))
    names = {found["Digest"], *(name.rpartition("@")[2] for name in found["RepoDigests"])}
    if digest not in names:
        raise SandboxError(f"image {exact}: what was pulled has the digest {found['Digest']}; look at the registry")
    _check_machine(exact, {"architecture": found["Architecture"], "os": found["Os"]})
    say(f"image {exact}: {len(found['RootFS']['Layers'])} layers are here, making a root of them")
    await in_thread(lay, _layers(found["GraphDriver"]["Data"], store), root)
    return digest


def _check_machine(reference: Reference, configuration: Mapping[str, Any]) -> None:
    wanted = f"linux/{architecture()}"
    given = f"{configuration.get('os')}/{configuration.get('architecture')}"
    if given != wanted:
        raise SandboxError(f"image {reference}: is for {given}, this machine is {wanted}; name one built for it")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of the store."""

    folder: Path
    table: Mapping[str, Mapping[str, Any]]
    """Path → what the layer says of it, for layers that were fetched in parts; empty for others."""


def _layers(data: Mapping[str, str], store: Path) -> list[Layer]:
    """The lowest first."""
    folders = [data["UpperDir"], *filter(None, data.get("LowerDir", "").split(":"))]
    return [Layer(folder=path, table=_table(path.parent.name, store)) for path in map(Path, reversed(folders))]


def _table(identity: str, store: Path) -> Mapping[str, Mapping[str, Any]]:
    """podman 4.3 gives all that it fetched in parts to root and to this moment: the layer itself knows better."""
    file = store / "root" / "overlay-layers" / identity / _TABLE
    if not file.exists():
        return {}
    entries = json.loads(file.read_bytes())["entries"]
    return {os.path.normpath(entry["name"].lstrip("/")): entry for entry in entries if entry["type"] != "chunk"}


# ------------------------------------------------------------ layers over each other


def lay(layers: list[Layer], root: Path) -> None:
    """Lay layers over each other in the empty folder `root`, the lowest first."""
    times: dict[Path, int] = {}
    for layer in layers:
        _over(layer, Path(), root, times)
    for folder, time_ns in reversed(times.items()):  # when all is in them
        if folder.is_dir() and not folder.is_symlink():
            os.utime(folder, ns=(time_ns, time_ns))


def _over(layer: Layer, inner: Path, root: Path, times: dict[Path, int]) -> None:
    """One folder of a layer; it is walked by what lies on the disk, so that no name in a table leads elsewhere."""
    for entry in _entries(layer.folder / inner):
        path, target = inner / entry.name, root / inner / entry.name
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # removed by this layer
            _remove(target)
        elif entry.is_dir(follow_symlinks=False):
            source = layer.folder / path
            hides = any(os.listxattr(source).count(name) and os.getxattr(source, name) == b"y" for name in _OPAQUE)
            if hides or target.is_symlink() or not target.is_dir():
                _remove(target)
                target.mkdir()
            _as_folder(source, target)
            _as_told(target, layer.table.get(str(path)))
            times.pop(target, None)
            times[target] = target.lstat().st_mtime_ns
            _over(layer, path, root, times)
        else:
            _remove(target)
            os.link(layer.folder / path, target, follow_symlinks=False)
            _as_told(target, layer.table.get(str(path)))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from sorted(entries, key=lambda entry: entry.name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _as_folder(source: Path, target: Path) -> None:
    status = source.stat()
    os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source):
        if not name.startswith(_OVERLAY):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _as_told(path: Path, entry: Mapping[str, Any] | None) -> None:
    """What a layer's table says of one file, in the order in which nothing undoes what was done before."""
    if entry is None or entry["type"] == "hardlink":  # its other name is told for both
        return
    os.chown(path, entry.get("uid", 0), entry.get("gid", 0), follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(entry.get("mode", 0) & 0o7777)
    for name, value in (entry.get("xattrs") or {}).items():
        with contextlib.suppress(OSError):  # one that this file system does not know
            os.setxattr(path, name, base64.b64decode(value), follow_symlinks=False)
    time_ns = _nanoseconds(entry["modtime"])
    os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def _nanoseconds(told: str) -> int:
    """Of `2026-11-30T22:33:08.308407553Z`, whose digits are more than datetime keeps."""
    seconds = datetime.fromisoformat(f"{told[:19]}+00:00")
    fraction = told[19:].removesuffix("Z").lstrip(".")
    return int(seconds.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)
