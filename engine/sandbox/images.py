"""Root file systems and package folders, built once and kept by content under the user's cache.

An image is decided by its ImageSpec and the builder's format version alone, so the same specification is the same
folder for every run and every process of this machine. It appears whole or not at all: it is built in a temporary
folder beside it under a lock, marked `.complete`, then renamed. Nothing of this machine's settings (mirrors,
certificates, resolver, package indexes) stays in it. What is an image of a registry is pulled (`pulled.py`), and so is
what another machine has built and pushed, where a registry is given; the rest is built here.

Refuses: a Debian root without root rights or debootstrap; Python packages with compiled parts in a plain package
folder, because the interpreter that will load them is not known; npm packages without npm, or in a Debian root; an
image of a registry with anything beside it, or without podman and skopeo.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from engine.core.contracts import Say
from engine.core.errors import ConfigError, SandboxError
from engine.core.paths import cache_dir
from engine.core.processes import run_checked, run_logged
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.core.threads import to_the_end
from engine.core.whole import move_into_place
from engine.sandbox import pip_settings
from engine.sandbox.image_tools import ImageTools, missing_tools
from engine.sandbox.pulled import pull
from engine.sandbox.references import Reference, parse_reference

FORMAT = 1
"""Raise it when the builder makes something else from the same specification."""

_LAYERS = ".layers"
"""Folder beside the images: layers of those that were pulled, which share them."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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


class DebianImageStore:
    """The ImageStore: images under `cache_dir()/images/NAME-DIGEST`, each folder being the root itself.

    `folder`: another place for them; None: the cache. `registry`: where images that were built elsewhere lie, as
    `NAME:DIGEST`; None: each is built here. `plain_http`: whether HTTP is spoken to registries beyond loopback."""

    def __init__(self, folder: Path | None = None, *, registry: str | None = None, plain_http: bool = False) -> None:
        self._folder, self._registry, self._plain_http = folder, registry, plain_http

    def tools(self) -> ImageTools:
        """podman and skopeo over the layers of this store."""
        return ImageTools(self._place() / _LAYERS, plain_http=self._plain_http)

    def _place(self) -> Path:
        return self._folder or cache_dir() / "images"

    def path(self, spec: ImageSpec) -> Path:
        """Folder of the image's root; `(path / ".complete")` exists once it is whole."""
        return self._place() / f"{spec.name}-{digest(spec)}"

    def has(self, spec: ImageSpec) -> bool:
        """Whether the image is built."""
        return (self.path(spec) / ".complete").is_file()

    def problems(self, specs: Sequence[ImageSpec]) -> tuple[ConfigError, ...]:
        """What keeps the images among `specs` that are not built yet from being built on this machine."""
        missing = [spec for spec in specs if not self.has(spec)]
        return tuple(problem for spec in missing for problem in _build_problems(spec))

    async def unavailable(self, specs: Sequence[ImageSpec]) -> list[ConfigError]:
        """The same of those that no registry has either. Raises SandboxError where the registry fails."""
        found: list[ConfigError] = []
        for spec in specs:
            problems = self.problems([spec])
            if problems and await self._pushed(spec) is None:
                found += problems
        return found

    async def build(self, spec: ImageSpec, say: Say) -> Path:
        """Build unless present; returns `path(spec)`.

        Raises ConfigError where this machine lacks a tool or right, SandboxError (with the log's path) where the build
        itself fails."""
        target = self.path(spec)
        if self.has(spec):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        async with _lock(target.with_name(f".{target.name}.lock"), f"image {spec.name}", say):
            if not self.has(spec):
                pushed = await self._pushed(spec)
                for problem in () if pushed else _build_problems(spec):
                    raise problem
                await _build(spec, target, say, self.tools(), pushed)
        return target

    async def _pushed(self, spec: ImageSpec) -> Reference | None:
        """The image in a registry, for one that is pulled."""
        key = f"image {spec.name}"
        if spec.reference is not None:
            for problem in _reference_problems(spec):
                raise problem
            return parse_reference(key, spec.reference)
        if self._registry is None:
            return None
        for problem in missing_tools(key, self._registry):
            raise problem
        reference = parse_reference(key, f"{self._registry}/{spec.name}:{digest(spec)}")
        return None if await self.tools().manifest(reference) is None else reference


def digest(spec: ImageSpec) -> str:
    """12 hex digits over all that decides an image's contents; its name and the order of packages do not."""
    content = {
        "format": FORMAT,
        "machine": platform.machine(),
        "suite": spec.suite,
        "packages": sorted(set(spec.packages)),
        "pip": sorted(set(spec.pip)),
        "python": "" if spec.suite or spec.npm else f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    if spec.npm:  # in no older image's digest
        content["npm"] = sorted(set(spec.npm))
    if spec.reference:
        content |= {"reference": spec.reference, "python": ""}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _build_problems(spec: ImageSpec) -> list[ConfigError]:
    if spec.reference is not None:
        return _reference_problems(spec)
    key, found = f"image {spec.name}", []
    if spec.npm and (spec.suite or spec.pip):
        problem = "npm packages go into a plain folder of their own"
        found.append(ConfigError(key, spec.npm, problem, "name no suite and no Python packages beside them"))
    elif spec.npm and shutil.which("npm", path=_host_path()) is None:
        way = "apt-get install -y --no-install-recommends npm, or https://nodejs.org"
        found.append(ConfigError(key, spec.npm, "npm is not installed", way))
    if spec.suite is None:
        if spec.packages:
            found.append(ConfigError(key, spec.packages, "Debian packages without a suite", "name a suite"))
        return found
    if os.geteuid() != 0:
        found.append(ConfigError(key, spec.suite, "a Debian root can only be built by root", "run as root"))
    for tool, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux"), ("chroot", "coreutils")):
        if shutil.which(tool, path=_host_path()) is None:
            way = f"apt-get install -y --no-install-recommends {package}"
            found.append(ConfigError(key, spec.suite, f"{tool} is not installed", way))
    return found


def _reference_problems(spec: ImageSpec) -> list[ConfigError]:
    key, text = f"image {spec.name}", spec.reference or ""
    if spec.suite or spec.packages or spec.pip or spec.npm:
        way_out = "name no suite and no packages beside it"
        return [ConfigError(key, text, "an image of a registry is taken as it is", way_out)]
    try:
        parse_reference(key, text)
    except ConfigError as error:
        return [error]
    return missing_tools(key, text)


@contextlib.asynccontextmanager
async def _lock(path: Path, what: str, say: Say) -> AsyncIterator[None]:
    """Hold an exclusive lock between processes; waiting neither blocks the event loop nor outlives cancellation."""
    with path.open("w") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    say(f"{what}: it is being built already, waiting")
                waiting = True
                await asyncio.sleep(0.5)
        yield


async def _build(spec: ImageSpec, target: Path, say: Say, tools: ImageTools, pushed: Reference | None) -> None:
    """Build, or pull what was `pushed`, into a temporary folder and rename; called under the image's lock."""
    if target.exists():
        await asyncio.to_thread(shutil.rmtree, target)
    log = target.with_name(f"{target.name}.log")
    log.unlink(missing_ok=True)
    begun = time.monotonic()
    with temporary_folder("image", target.parent) as place:
        root = place / "root"
        root.mkdir()
        root.chmod(0o755)  # it becomes `/` of sandboxes whose user is not root: the umask must not close it
        builder, described = _Builder(spec, root, log, say), _description(spec)
        if pushed is not None:
            described["manifest"] = pushed.at(await pull(pushed, root, tools, target.parent / _LAYERS, say))
            (root / ".complete").unlink(missing_ok=True)  # the layers' own, if one has it: never written through
        elif spec.suite is not None:
            await builder.root(spec.suite)
        elif spec.npm:
            await builder.node_modules()
        elif spec.pip:
            await builder.folder()
        (root / ".complete").write_text(json.dumps(described, indent=1) + "\n")
        await to_the_end(asyncio.to_thread(move_into_place, root, target))
    say(f"image {spec.name}: {'pulled' if pushed else 'built'} in {time.monotonic() - begun:.0f} s")


def _description(spec: ImageSpec) -> dict[str, object]:
    return {
        "format": FORMAT,
        "name": spec.name,
        "suite": spec.suite,
        "packages": sorted(spec.packages),
        "pip": sorted(spec.pip),
        "npm": sorted(spec.npm),
    }


class _Builder:
    """One build into one folder."""

    def __init__(self, spec: ImageSpec, folder: Path, log: Path, say: Say) -> None:
        self._spec, self._folder, self._log, self._say = spec, folder, log, say
        self._begun = time.monotonic()
        self._told: set[str] = set()

    async def root(self, suite: str) -> None:
        """A Debian root by debootstrap, then `/opt/venv` by the root's own Python."""
        include = [f"--include={','.join(self._spec.packages)}"] if self._spec.packages else []
        command = [*_ISOLATED, "debootstrap", "--variant=minbase", *include, suite, str(self._folder)]
        mirror = await _mirror()
        await self._run([*command, *([mirror] if mirror else [])], self._host(), _debootstrap_phase)
        if self._spec.pip:
            await self._venv()
        await asyncio.to_thread(_clean, self._folder)

    async def _venv(self) -> None:
        private = self._folder / "run" / "image-build"
        private.mkdir(parents=True)
        try:
            settings = await pip_settings.for_chroot(private, "/run/image-build")
            environment = {"PATH": f"/opt/venv/bin:{_SYSTEM_PATH}", "HOME": "/run/image-build", "LC_ALL": "C.UTF-8"}
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
        await self._run(command, self._host() | pip_settings.QUIET | {"TMPDIR": str(scratch)}, _pip_phase)
        compiled = sorted(path.name for path in self._folder.rglob("*.so*"))
        if compiled:
            raise SandboxError(
                f"image {self._spec.name}: {compiled[0]} is compiled code; name a suite for such packages"
            )
        shutil.rmtree(self._folder / "bin", ignore_errors=True)  # scripts that name this machine's interpreter
        await self._run(_compile(sys.executable, target), self._host(), _pip_phase)

    async def node_modules(self) -> None:
        """A plain folder of npm packages; no package's own script is run."""
        flags = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--omit=dev")
        command = ["npm", "install", "--global=false", "--prefix", str(self._folder), *flags, *self._spec.npm]
        await self._run(command, self._host() | {"npm_config_update_notifier": "false"}, _npm_phase)
        (self._folder / "node_modules" / ".package-lock.json").unlink(missing_ok=True)  # names this machine's registry
        await asyncio.to_thread(_close_executables, self._folder)

    def _host(self) -> dict[str, str]:
        return {**os.environ, "PATH": _host_path(), "LC_ALL": "C.UTF-8"}

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str], phase_of: Callable[[str], str]
    ) -> None:
        def on_line(line: str) -> None:
            phase = phase_of(line)
            if phase and phase not in self._told:
                self._told.add(phase)
                self._say(f"image {self._spec.name}: {phase} ({time.monotonic() - self._begun:.0f} s)")

        code, tail = await run_logged(command, environment=environment, log=self._log, on_line=on_line)
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


def _host_path() -> str:
    """PATH with the system folders, which a login of root may lack."""
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
