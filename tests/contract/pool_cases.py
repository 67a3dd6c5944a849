"""What the suites of the pool share: podman services, each with a state of its own, reached by their sockets."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from pool_settings import settings
from sandbox_cases import ROOT

from engine.sandbox.podman_pool.runtime import PodmanPoolRuntime

_SETTINGS = ROOT / "engine/sandbox/containers.conf"


class Service:
    """One podman, as a host of the pool has it."""

    def __init__(self, name: str, base: Path) -> None:
        self.name, self.base = name, base / name
        self.base.mkdir()
        self.socket = self.base / "s"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> dict[str, object]:
        return {"name": self.name, "address": f"unix://{self.socket}", "capacity": None, "unencrypted": False}

    def command(self, *arguments: str) -> list[str]:
        places = ("--root", f"{self.base}/r", "--runroot", f"{self.base}/n", "--tmpdir", f"{self.base}/t")
        return ["podman", *places, "--storage-driver", "overlay", "--log-level", "error", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {"CONTAINERS_CONF": str(_SETTINGS), "PATH": path, "HOME": str(self.base)}

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with (self.base / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--",
                 *self.command("system", "service", "--time", "0", f"unix://{self.socket}")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd=self.base,
            )  # fmt: skip

    async def answers(self) -> None:
        while not self.socket.exists():
            assert self._process is not None and self._process.poll() is None, (self.base / "log").read_text()
            await asyncio.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the service, and nothing of what it made."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()

    def run(self, *arguments: str) -> str:
        """A command of podman's own, as a person on that host would give it."""
        done = subprocess.run(self.command(*arguments), env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[dict[str, object]]:
        return list(json.loads(self.run("ps", "--all", "--format", "json")))

    def running(self) -> list[str]:
        return [str(each["Names"][0]) for each in self.containers() if each["State"] == "running"]  # type: ignore[index]

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(AssertionError):
            self.run("rm", "--all", "--force", "--time", "0")
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(f"{self.base}/"):
                subprocess.run(["umount", "--lazy", line.split()[4]], check=False)


@contextlib.contextmanager
def services(*names: str):  # type: ignore[no-untyped-def]
    """Podmans of a test's own; nothing of them stays."""
    base = Path(tempfile.mkdtemp(prefix="pool-"))
    made = []
    try:
        for name in names:
            made.append(Service(name, base))
            made[-1].start()
        yield made
    finally:
        for each in made:
            each.close()
        shutil.rmtree(base)


def problem() -> str:
    """Why no podman service can be had here; empty: it can."""
    if os.geteuid() != 0:
        return "podman's services need root"
    missing = [tool for tool in ("podman", "runc", "conmon", "setpriv") if shutil.which(tool) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def make_pool(*hosts: dict[str, object], **changes: object) -> PodmanPoolRuntime:
    return PodmanPoolRuntime(**settings(*hosts) | changes)  # type: ignore[arg-type]
