"""podman and skopeo as this project uses them with registries: a store of its own, and errors in one line.

Credentials are podman's (`podman login`, $REGISTRY_AUTH_FILE), and so are mirrors, certificates and the policy of
signatures (registries.conf, certs.d, policy.json of this machine). Plain HTTP is spoken to loopback alone, unless said.
Invariant: each command runs in a mount namespace of its own, where nothing is mounted that outlives it and where the
machine's other podmans cannot be seen: above all what they remember of blobs, by which a push in one compression would
otherwise be answered with an older one in another.
"""

import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.errors import ConfigError, SandboxError
from engine.core.processes import run_checked
from engine.core.temporary import temporary_folder
from engine.sandbox.references import Reference
from engine.sandbox.tools import find, host_path

NEEDED = (("podman", "podman"), ("skopeo", "skopeo"), ("runc", "runc"), ("unshare", "util-linux"), ("tar", "tar"))
"""Programs, each with its Debian package."""
_PRIVATE = "/var/lib/containers"
"""Where podman keeps what it knows of blobs, whatever store it is given. Each command has a folder of its own there, in
memory, and what podman would keep of containers is in it too: that names folders, and a cache can be moved."""
_ISOLATED = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
_SCRIPT = f'mount -t tmpfs none {_PRIVATE}; exec "$@"'
_LEFT_OUT = ("CONTAINER_HOST", "CONTAINER_CONNECTION", "STORAGE_DRIVER", "STORAGE_OPTS")

_CAUSES = (
    (("manifest unknown", "name unknown", "not found: manifest"), "the registry has no such image", "check the name"),
    (
        ("unauthorized", "authentication required", "access to the resource is denied", "denied:"),
        "the registry does not let us in",
        "run `podman login {host}` as this user",
    ),
    (
        ("server gave HTTP response to HTTPS client",),
        "the registry speaks plain HTTP, which is taken from loopback alone",
        "set job.plain_http=true if the network between is yours",
    ),
    (("x509:", "certificate"), "the registry's certificate is not trusted here", "put its authority in certs.d/{host}"),
    (
        ("no such host", "connection refused", "network is unreachable", "no route to host", "i/o timeout"),
        "the registry cannot be reached",
        "check its name and this machine's network",
    ),
    (("no space left on device",), "the disk is full", "free some of it; the same command goes on"),
    (
        ("did not match", "does not match", "checksum mismatch", "unexpected EOF", "invalid checksum"),
        "what came is not what its digest says",
        "push it anew, or look at what stands between",
    ),
    (
        ("short write",),
        "this version of skopeo cannot write the image in that format",
        "choose another one (zstd), or install a newer skopeo",
    ),
    (
        ("no image found in manifest list", "no image found in image index"),
        "there is none for this machine's architecture",
        "name one that was built for it",
    ),
)
"""Words of podman and skopeo → problem and way out."""


def missing_tools(key: str, value: object) -> list[ConfigError]:
    """What keeps this machine from pulling and pushing."""
    found = [
        ConfigError(key, value, f"{tool} is not installed", f"apt-get install -y --no-install-recommends {package}")
        for tool, package in NEEDED
        if find(tool) is None
    ]
    if os.geteuid() != 0:
        found.append(ConfigError(key, value, "images are pulled and pushed with their owners", "run as root"))
    return found


class ImageTools:
    """Commands over one store.

    `store`: folder of the layers, made when first needed; `plain_http`: whether HTTP is spoken beyond loopback."""

    def __init__(self, store: Path, *, plain_http: bool) -> None:
        self._store, self._plain_http = store, plain_http

    async def podman(self, reference: Reference, *arguments: str) -> str:
        """Run podman; returns its output. Raises SandboxError that names the reference."""
        folders = ("--root", f"{self._store}/root", "--runroot", f"{_PRIVATE}/run", "--tmpdir", f"{_PRIVATE}/libpod")
        async with self._settings() as environment:
            return await self._run(reference, ("podman", *folders, *arguments), environment)

    async def skopeo(self, reference: Reference, *arguments: str) -> str:
        """Run skopeo; returns its output. Raises SandboxError that names the reference."""
        async with self._settings() as environment:
            return await self._run(reference, ("skopeo", *arguments), environment)

    async def manifest(self, reference: Reference) -> dict[str, Any] | None:
        """The manifest (or list of manifests) that the registry has; None: it has none."""
        return await self._inspect(reference, "--raw")

    async def configuration(self, reference: Reference) -> dict[str, Any] | None:
        """The image's configuration, for this machine's architecture where there are several."""
        return await self._inspect(reference, "--config")

    async def digest(self, reference: Reference) -> str:
        """Digest of the manifest that a tag stands for now. Raises SandboxError."""
        # `.Digest` alone asks for no list of tags, which some registries do not give
        how = ("--no-tags", "--format", "{{.Digest}}", self.tls(reference))
        output = await self.skopeo(reference, "inspect", *how, f"docker://{reference}")
        found = output.strip().rpartition("\n")[2]
        if not found.startswith("sha256:"):
            raise SandboxError(f"{reference}: skopeo names no digest: {' '.join(output.split())[-300:]}")
        return found

    def tls(self, reference: Reference) -> str:
        """The flag that every command towards a registry takes."""
        return f"--tls-verify={'false' if reference.loopback or self._plain_http else 'true'}"

    async def _inspect(self, reference: Reference, what: str) -> dict[str, Any] | None:
        try:
            output = await self.skopeo(reference, "inspect", what, self.tls(reference), f"docker://{reference}")
        except UnknownImage:
            return None
        found: dict[str, Any] = json.JSONDecoder().raw_decode(output, output.find("{"))[0]
        return found

    @contextlib.asynccontextmanager
    async def _settings(self) -> AsyncIterator[dict[str, str]]:
        """The environment of one command, with a folder for what it leaves."""
        self._store.mkdir(parents=True, exist_ok=True)
        with temporary_folder("tools", self._store) as scratch:
            environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
            environment |= {
                "CONTAINERS_CONF": str(_packaged("image_tools.conf")),
                "CONTAINERS_STORAGE_CONF": str(_packaged("storage.conf")),
                "TMPDIR": str(scratch),
                "PATH": host_path(),
            }
            yield environment

    async def _run(self, reference: Reference, command: Sequence[str], environment: dict[str, str]) -> str:
        if shutil.which(command[0], path=environment["PATH"]) is None:
            raise SandboxError(f"{reference}: {command[0]} is not installed")
        Path(_PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
        code, output = await run_checked([*_ISOLATED, _SCRIPT, "sh", *command], environment=environment)
        if code != 0:
            raise told(reference, output)
        return output


def _packaged(name: str) -> Path:
    with resources.as_file(resources.files("engine.sandbox") / name) as path:
        return path


class UnknownImage(SandboxError):
    """The registry answers, and has no such image."""


def told(reference: Reference, output: str) -> SandboxError:
    """What a tool said, as one line that names the reference, the cause and the way out."""
    words = " ".join(output.split())
    for signs, problem, way_out in _CAUSES:
        if any(sign in words for sign in signs):
            kind = UnknownImage if signs[0] == "manifest unknown" else SandboxError
            return kind(f"image {reference}: {problem}; {way_out.format(host=reference.host)} ({words[-300:]})")
    return SandboxError(f"image {reference}: {words[-500:]}")
