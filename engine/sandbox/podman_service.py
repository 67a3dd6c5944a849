"""A podman of the project's own: its state lies in the cache, its settings come with the package.

No other podman of the machine is read or changed: root, run root, locks and settings are all given. `Service` is the
API server of one process, and dies with it; where it ends before, containers live on, and the next call starts it
again. `remove_container` works without one, for leftovers of dead runs.
"""

import asyncio
import json
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.core.processes import end
from engine.core.threads import in_thread
from engine.sandbox.tools import host_path

_START_S = 30.0
_CALL_S = 120
_REMOVE_S = 20.0
_MISSING = 404


def command() -> list[str]:
    """`podman` with where its state lies. Raises SandboxError when it is not installed."""
    podman = shutil.which("podman")
    if podman is None:
        raise SandboxError("podman is not installed: apt-get install -y --no-install-recommends podman")
    base = cache_dir() / "podman"
    folders = ("--root", f"{base}/root", "--runroot", f"{base}/run", "--tmpdir", f"{base}/tmp")  # noqa: S108
    # No image is kept in it (roots are mounted by rooms), so the simplest driver is the right one.
    return [podman, *folders, "--storage-driver", "vfs", "--log-level", "error"]


def environment() -> dict[str, str]:
    """What podman is told beside its arguments: the packaged settings and a path, nothing of the user's."""
    settings = resources.files("engine.sandbox") / "containers.conf"
    return {"CONTAINERS_CONF": str(settings), "PATH": host_path(), "HOME": str(cache_dir() / "podman")}


def remove_container(name: str) -> None:
    """Kill and remove a container; none of that name is fine. Raises SandboxError."""
    arguments = [*command(), "rm", "--force", "--time", "0", "--ignore", name]
    deadline = time.monotonic() + _REMOVE_S
    while True:
        done = subprocess.run(arguments, env=environment(), capture_output=True, text=True)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise SandboxError(f"cannot remove the container {name}: {' '.join(done.stderr.split())}")
        time.sleep(0.05)


class Service:
    """`podman system service` on a socket that only this user reaches, called through podman-py."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: Process | None = None
        self._starting = asyncio.Lock()

    async def start(self, folder_link: Path) -> None:
        """Start it and wait until it answers. `folder_link` will name its folder, for those who clean up after us."""
        # A socket's path may have 107 bytes at most, so it does not lie in the cache.
        self._folder = Path(tempfile.gettempdir()) / f"lego-rl-podman-{secrets.token_hex(4)}"
        folder_link.symlink_to(self._folder)  # ahead of the act: there is no moment at which nobody knows of it
        self._folder.mkdir(mode=0o700)
        (cache_dir() / "podman").mkdir(parents=True, exist_ok=True)
        try:
            await self._serve(self._folder)
        except SandboxError:
            await self.stop()
            raise

    async def _serve(self, folder: Path) -> None:
        (folder / "podman.sock").unlink(missing_ok=True)
        with (folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "--"),
                *command(),
                *("system", "service", "--time", "0", f"unix://{self._socket}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=folder,  # conmon leaves an empty file `oom` in it when a command ran out of memory
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not await asyncio.to_thread(self._answers):
            if self._process.returncode is not None or time.monotonic() > deadline:
                reason = " ".join((folder / "log").read_text(errors="replace").split())
                raise SandboxError(f"podman's service does not start: {reason[-500:] or 'no answer'}")
            await asyncio.sleep(0.02)

    async def _revive(self) -> bool:
        """Start it again where it has ended; whether it had."""
        async with self._starting:
            if self._folder is None or (self._process is not None and self._process.returncode is None):
                return False
            await self._serve(self._folder)
            return True

    async def stop(self) -> None:
        """End it; safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            await end(process)
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def create(self, specification: Mapping[str, Any]) -> int:
        """Create and start a container; returns the host process id of its first process. Raises SandboxError."""
        await self._revive()
        try:
            return await in_thread(self._create, specification)
        except SandboxError:
            if not await self._revive():
                raise
        await in_thread(self._remove, specification["name"])  # as far as it was made when the service ended
        return await in_thread(self._create, specification)

    async def remove(self, name: str) -> None:
        """Kill and remove a container; none of that name is fine. Raises SandboxError."""
        await self._revive()
        try:
            await in_thread(self._remove, name)
        except SandboxError:
            if not await self._revive():
                raise
            await in_thread(self._remove, name)

    def _create(self, specification: Mapping[str, Any]) -> int:
        name = specification["name"]
        self._call("post", "/containers/create", data=json.dumps(specification))
        self._call("post", f"/containers/{name}/start")
        return int(self._call("get", f"/containers/{name}/json")["State"]["Pid"])

    def _remove(self, name: str) -> None:
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                self._call("delete", f"/containers/{name}", params={"force": "true", "timeout": "0", "v": "true"})
                return
            except SandboxError:
                # Podman cleans up after a container whose process ended, in a process of its own; while that is at
                # work, the same container cannot be removed.
                if time.monotonic() > deadline or not self._answers():
                    raise
                time.sleep(0.05)

    @property
    def _socket(self) -> Path:
        if self._folder is None:
            raise SandboxError("podman's service is not started")
        return self._folder / "podman.sock"

    def _answers(self) -> bool:
        # Asked by a plain connection: the client's own leaks its socket when nobody listens yet.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        """One request on a connection of its own: sessions of the client are not for several threads."""
        from podman import PodmanClient
        from podman.errors import APIError, PodmanError
        from requests.exceptions import RequestException

        try:
            with PodmanClient(base_url=f"http+unix://{self._socket}", timeout=_CALL_S) as client:
                answer = getattr(client.api, method)(path, **arguments)
                if method == "delete" and answer.status_code == _MISSING:
                    return None
                answer.raise_for_status()
                return answer.json() if "json" in answer.headers.get("Content-Type", "") else None
        except (APIError, PodmanError, RequestException, OSError) as error:
            raise SandboxError(f"podman: {method} {path}: {' '.join(str(error).split())}") from error
