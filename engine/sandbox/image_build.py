"""Builds one image into one folder: debootstrap and the root's own pip, or plain folders by pip or npm.

A build has a network of its own (`network.building`). What it leaves depends on its specification alone: by-products,
caches and the machine's settings are removed, and compiled Python is checked by content, not by time.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.core.contracts import Say
from engine.core.errors import SandboxError
from engine.core.processes import run_checked, run_logged
from engine.core.specs import ImageSpec
from engine.sandbox import pip_settings
from engine.sandbox.network import sources
from engine.sandbox.network.building import BuildNetwork, build_network
from engine.sandbox.tools import SYSTEM_PATH, host_path

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# Mounts that debootstrap makes inside the root live in a namespace of their own: they end with the process, whatever
# happens, so that removing an unfinished root can never reach into the machine's /proc or /sys.
_ISOLATED = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_EMPTIED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/cache/debconf",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "tmp",
    "root",
)


async def built(spec: ImageSpec, say: Say, reach: Sequence[str], root: Path, log: Path) -> dict[str, object]:
    """Build it, in a network of its own."""
    if spec.suite is not None or spec.npm or spec.pip:
        mirror = await _mirror() if spec.suite is not None else ""
        places = [*await _sources(spec, mirror), *reach]
        async with build_network(places, root.with_name("network")) as network:
            builder = _Builder(spec, root, log, say, network)
            if spec.suite is not None:
                await builder.root(spec.suite, mirror)
            elif spec.npm:
                await builder.node_modules()
            else:
                await builder.folder()
    return {}


async def _sources(spec: ImageSpec, mirror: str) -> list[str]:
    """What a build of it reaches on this machine without being told."""
    found = sources.of_debian(mirror) if spec.suite is not None else []
    if spec.pip:
        found += sources.of_pip(await pip_settings.configured())
    if spec.npm:
        found += await sources.of_npm(_host())
    return [*found, *sources.of_proxies()]


class _Builder:
    """One build into one folder."""

    def __init__(self, spec: ImageSpec, folder: Path, log: Path, say: Say, network: BuildNetwork) -> None:
        self._spec, self._folder, self._log, self._say = spec, folder, log, say
        self._network = network
        self._begun = time.monotonic()
        self._told: set[str] = set()

    async def root(self, suite: str, mirror: str) -> None:
        """A Debian root by debootstrap, then `/opt/venv` by the root's own Python."""
        include = [f"--include={','.join(self._spec.packages)}"] if self._spec.packages else []
        command = [*_ISOLATED, "debootstrap", "--variant=minbase", *include, suite, str(self._folder)]
        await self._run([*command, *([mirror] if mirror else [])], _host(), _debootstrap_phase)
        if self._spec.pip:
            await self._venv()
        await asyncio.to_thread(_clean, self._folder)

    async def _venv(self) -> None:
        private = self._folder / "run" / "image-build"
        private.mkdir(parents=True)
        try:
            settings = await pip_settings.for_chroot(private, "/run/image-build")
            environment = {"PATH": f"/opt/venv/bin:{SYSTEM_PATH}", "HOME": "/run/image-build", "LC_ALL": "C.UTF-8"}
            environment |= settings | {name: os.environ[name] for name in _PROXIES if name in os.environ}
            inside = [*_ISOLATED, "chroot", str(self._folder)]
            steps = [
                ["/usr/bin/python3", "-m", "venv", "/opt/venv"],
                ["/opt/venv/bin/python", "-m", "pip", "install", "--no-compile", *self._spec.pip],
                _compile("/opt/venv/bin/python", "/opt/venv/lib"),
            ]
            for step in steps:
                await self._run([*inside, *step], environment, _pip_phase)
        finally:
            shutil.rmtree(private)

    async def folder(self) -> None:
        """A plain folder of pure-Python packages."""
        target = str(self._folder)
        command = [sys.executable, "-m", "pip", "install", "--no-compile", "--target", target, *self._spec.pip]
        scratch = self._folder.with_name("pip")  # in pip's own place it would outlive a killed pip
        scratch.mkdir()
        await self._run(command, _host() | pip_settings.QUIET | {"TMPDIR": str(scratch)}, _pip_phase)
        compiled = sorted(path.name for path in self._folder.rglob("*.so*"))
        if compiled:
            raise SandboxError(
                f"image {self._spec.name}: {compiled[0]} is compiled code; name a suite for such packages"
            )
        shutil.rmtree(self._folder / "bin", ignore_errors=True)  # scripts that name this machine's interpreter
        await self._run(_compile(sys.executable, target), _host(), _pip_phase)

    async def node_modules(self) -> None:
        """A plain folder of npm packages; no package's own script is run."""
        flags = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--omit=dev")
        command = ["npm", "install", "--global=false", "--prefix", str(self._folder), *flags, *self._spec.npm]
        await self._run(command, _host() | {"npm_config_update_notifier": "false"}, _npm_phase)
        (self._folder / "node_modules" / ".package-lock.json").unlink(missing_ok=True)  # names this machine's registry
        await asyncio.to_thread(_close_executables, self._folder)

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], phase_of: Callable[[str], str]
    ) -> None:
        def on_line(line: str) -> None:
            phase = phase_of(line)
            if phase and phase not in self._told:
                self._told.add(phase)
                self._say(f"image {self._spec.name}: {phase} ({time.monotonic() - self._begun:.0f} s)")

        entered = self._network.command(command)
        try:
            code, tail = await self._network.attend(
                run_logged(entered, environment=environment, log=self._log, on_line=on_line)
            )
        except SandboxError as error:
            raise SandboxError(f"image {self._spec.name}: {error} ({self._log})") from error
        if code != 0:
            raise SandboxError(f"image {self._spec.name}: {phase_of(tail) or command[-1]} failed: {tail} ({self._log})")


def _compile(python: str, folder: str) -> list[str]:
    # By content, not by time: the image's bytes do not depend on when it was built, and a read-only mount never
    # has stale caches. Files for other Python versions may not compile; that is theirs to know.
    script = "import compileall,py_compile,sys;" + (
        "compileall.compile_dir(sys.argv[1],quiet=2,stripdir=sys.argv[1],"
        "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
    )
    return [python, "-I", "-c", script, folder]


def _debootstrap_phase(line: str) -> str:
    for word in ("Retrieving", "Extracting", "Unpacking", "Configuring"):
        if line.startswith(f"I: {word}"):
            return f"debootstrap: {word.lower()}"
    return ""


def _pip_phase(line: str) -> str:
    for word in ("Collecting", "Downloading", "Installing collected"):
        if line.lstrip().startswith(word):
            return f"pip: {word.lower()}"
    return ""


def _npm_phase(line: str) -> str:
    return "npm: installed" if line.startswith("added ") else ""


def _close_executables(folder: Path) -> None:
    """Machine code may be executed, not read: the kernel then closes a process that runs it (environment, memory,
    descriptors, and so the trial's key) to all others of its user, as a launcher in Python does for itself."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        mode = 0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644
        if mode == 0o755 and path.is_file() and not {".so", ".node"} & set(path.suffixes):  # libraries are read
            with path.open("rb") as file:
                mode = 0o711 if file.read(4) == b"\x7fELF" else mode
        path.chmod(mode)


def _clean(root: Path) -> None:
    """Empty caches and documentation, and forget this machine's resolver and name."""
    for name in _EMPTIED:
        folder = root / name
        if not folder.is_dir() or folder.is_symlink():
            continue
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    for name, text in (("resolv.conf", ""), ("hostname", "sandbox\n"), ("hosts", "127.0.0.1 localhost sandbox\n")):
        path = root / "etc" / name
        path.unlink(missing_ok=True)
        path.write_text(text)


async def _mirror() -> str:
    """The Debian mirror that this machine's apt is configured with; empty: debootstrap's own default."""
    if shutil.which("apt-get") is None:
        return ""
    fields = "--format=$(ORIGIN) $(COMPONENT) $(REPO_URI)"
    code, text = await run_checked(["apt-get", "indextargets", fields, "Created-By: Packages"])
    if code != 0:
        return ""
    for line in text.splitlines():
        origin, _, rest = line.partition(" ")
        component, _, uri = rest.partition(" ")
        if origin == "Debian" and component == "main" and "security" not in uri and uri.startswith("http"):
            return uri
    return ""


def _host() -> dict[str, str]:
    return {**os.environ, "PATH": host_path(), "LC_ALL": "C.UTF-8"}
