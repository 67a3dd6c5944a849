"""Images of the cache put into a registry, each under `NAME:DIGEST` as its folder is named.

Formats: `gzip`, `zstd` and `zstd:chunked` (of the last, podman 4.3 or newer fetches only what it lacks) are made by
skopeo; `estargz` and `nydus` by their own converters, where they are installed, from a copy in gzip that is pushed as
`NAME:DIGEST-plain` first. Invariant: a tag appears when all of its layers are there, and what the registry has in the
format asked for is not sent again, so an interrupted push goes on where it stopped. The mark of the image store
(`.complete`) is not part of an image.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from engine.core.contracts import Say
from engine.core.errors import ConfigError, SandboxError
from engine.core.processes import run_checked
from engine.core.temporary import temporary_folder
from engine.sandbox.image_tools import ImageTools
from engine.sandbox.oci_layout import write_layout
from engine.sandbox.references import Reference
from engine.sandbox.tools import find

Format = Literal["gzip", "zstd", "zstd:chunked", "estargz", "nydus"]
FORMATS: tuple[Format, ...] = ("gzip", "zstd", "zstd:chunked", "estargz", "nydus")
CONVERTERS: Mapping[str, tuple[str, str]] = {
    "estargz": ("ctr-remote", "https://github.com/containerd/stargz-snapshotter, with a containerd that runs"),
    "nydus": ("nydusify", "https://github.com/dragonflyoss/nydus, with nydus-image beside it"),
}
"""Format → program that makes it, and where that comes from."""
_MARKS = (
    ("io.containers.zstd-chunked.manifest-checksum", "zstd:chunked"),
    ("containerd.io/snapshot/stargz/toc.digest", "estargz"),
    ("containerd.io/snapshot/nydus-bootstrap", "nydus"),
    ("containerd.io/snapshot/nydus-blob", "nydus"),
)
"""Annotations of layers that tell a format."""


def missing_converter(key: str, form: Format) -> list[ConfigError]:
    """What a format needs and this machine lacks."""
    if form not in CONVERTERS or find(CONVERTERS[form][0]):
        return []
    program, source = CONVERTERS[form]
    way_out = f"install it from {source}, or set {key} to gzip, zstd or zstd:chunked"
    return [ConfigError(key, form, f"{program}, which makes it, is not installed", way_out)]


def format_of(manifest: Mapping[str, Any]) -> str:
    """Format of an image's layers, by its manifest; the media type of one that no name is known for."""
    for layer in manifest.get("layers", ()):
        annotations = layer.get("annotations") or {}
        for mark, form in _MARKS:
            if mark in annotations:
                return form
    kinds = {layer["mediaType"].replace(".tar.gzip", ".tar+gzip") for layer in manifest.get("layers", ())}
    kind = kinds.pop() if len(kinds) == 1 else "several kinds"
    return str(kind.rpartition("+")[2] if "+" in kind else kind)


async def push(folder: Path, reference: Reference, form: Format, tools: ImageTools, say: Say) -> bool:
    """Push an image's folder unless the registry has it so; whether anything was sent. Raises SandboxError."""
    there = await tools.manifest(reference)
    if there is not None and format_of(there) == form:
        say(f"{reference}: is there already")
        return False
    if there is not None:
        say(f"{reference}: is there as {format_of(there)}, pushing it as {form}")
    if form in CONVERTERS:
        plain = Reference(host=reference.host, path=reference.path, tag=f"{reference.tag}-plain", digest=None)
        await push(folder, plain, "gzip", tools, say)
        await _convert(plain, reference, form)
    else:
        await _send(folder, reference, form, tools, say)
    if await tools.manifest(reference) is None:
        raise SandboxError(f"image {reference}: is not in the registry after it was pushed; look at its log")
    say(f"{reference}: pushed as {form}")
    return True


async def _send(folder: Path, reference: Reference, form: Format, tools: ImageTools, say: Say) -> None:
    with temporary_folder("push", folder.parent) as place:
        layout = place / "image"
        await write_layout(folder, layout, fast=form != "gzip")
        say(f"{reference}: pushing")
        how = ("--quiet", "--format", "oci", "--dest-compress-format", form, f"--dest-{tools.tls(reference)[2:]}")
        await tools.skopeo(reference, "copy", *how, f"oci:{layout}", f"docker://{reference}")


async def _convert(plain: Reference, target: Reference, form: Format) -> None:
    """Have a format's own program make `target` of `plain`, both in the registry."""
    program = CONVERTERS[form][0]
    if form == "nydus":
        insecure = ["--source-insecure", "--target-insecure"] if target.loopback else []
        steps = [[program, "convert", *insecure, "--source", str(plain), "--target", str(target)]]
    else:
        http = ["--plain-http"] if target.loopback else []
        steps = [
            [program, "images", "pull", *http, str(plain)],
            [program, "images", "convert", "--oci", "--estargz", str(plain), str(target)],
            [program, "images", "push", *http, str(target)],
        ]
    for step in steps:
        code, output = await run_checked(step)
        if code != 0:
            raise SandboxError(f"image {target}: {' '.join(step[:3])} failed: {' '.join(output.split())[-300:]}")
