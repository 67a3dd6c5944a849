"""Refuses a task where the agent would see another copy of the package that the task is about: the fix can be read
there. It looks in the task's image and in what the harness brings along.

    installed     importable from a site-packages or dist-packages folder, or metadata of an installation
    an archive    a wheel, source distribution or the like that names the package, or holds its files
    equal         a file, anywhere and of any name, whose contents are those that the fix brings about
    alike         a file of a changed file's name that shares most of its lines: another release, vendored or left over
    history       a repository, pack, bundle or dump: what states it can give back is not asked, so it may be any

A copy whose changed files are the repository's own shows nothing new, and is none of these but the second or the last.
In the repository itself it looks for what is equal to a changed file after the fix, also in archives.

Invariant: a root is read on the host and nothing of it is run or followed; it is walked once, and each task once for
it. What cannot be read is no proof of anything, so it is refused as well: EnvironmentFailure, or a finding
where this defence only observes.
"""

import asyncio
import gzip
import lzma
import re
import tarfile
import threading
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from stat import S_ISREG

from engine.core.errors import EnvironmentFailure
from engine.core.patch import walk_files
from engine.core.records import Finding, Task
from engine.core.task_contracts import Mode
from engine.defense.history import find_history
from engine.defense.stage import Stage
from engine.defense.target import Target, digest, normal, target_of

NAME = "leak_scan"
_SITES = frozenset({"site-packages", "dist-packages"})
_ARCHIVE = re.compile(r"\.(whl|egg|zip|deb|conda|tgz|tar|tar\.(gz|bz2|xz|zst))$")
_RELEASE = re.compile(r"(?P<name>.+?)[-_]v?\d")
_METADATA = re.compile(r"(?P<name>[^/]+?)(-\d[^/]*)?\.(dist-info|egg-info|egg-link)$")
_NO_ARCHIVE = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, ValueError, RuntimeError, NotImplementedError),
)
_READ_BYTES = 4 << 20
"""Of a source file, and of one in an archive: larger ones are none."""
_CODE = (".py", ".pyc", ".pyi", ".js", ".so")
"""Most of an image; to ask each of these files what it is would take as long as all else."""
_IMAGES = 8
"""Images whose contents are kept in mind, the latest ones."""
_ANSWERS = 4096


@dataclass(kw_only=True)
class _Image:
    """Regular files and links of a root, by what a leak is known by; paths relative to it."""

    root: Path
    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    projects: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    archives: list[str] = field(default_factory=list)
    by_size: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_name: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    histories: Sequence[str] = ()


class LeakScan(Stage):
    """No copy of the target in the image (`task_contracts.Defense`).

    Args:
        min_bytes: size below which equal contents prove nothing.
        likeness: share of a source file's lines that makes another file of its name a copy of it.
    """

    name = NAME

    def __init__(self, *, mode: Mode, min_bytes: int, likeness: float) -> None:
        self.mode = mode
        self.min_bytes = min_bytes
        self.likeness = likeness
        self._lock = threading.Lock()
        self._images: OrderedDict[Path, _Image] = OrderedDict()
        self._answers: OrderedDict[tuple[Path, str], Sequence[str]] = OrderedDict()

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """Look for the fix in the tree itself, where a build may have left it. Raises EnvironmentFailure."""
        leaks = await asyncio.to_thread(self._left, task, tree)
        if leaks and self.mode == "enforce":
            raise EnvironmentFailure(f"the repository of task {task.id} shows the agent the fix ({leaks[0]})")
        return (self.finding("setup", "the repository holds the fix", leaks),) if leaks else ()

    def _left(self, task: Task, tree: Path) -> list[str]:
        """Files of the tree whose contents are those that a file is to be changed to, and archives that hold such."""
        changed = task.reference.changes if task.reference is not None else ()
        wanted = {digest(one.after) for one in changed if one.before is not None and one.after is not None}
        secret = {found for found in wanted if found[0] >= self.min_bytes}
        sizes, names = {size for size, _ in secret}, {PurePosixPath(change.path).name for change in changed}
        found = []
        for path, info in walk_files(tree) if secret else ():
            if not S_ISREG(info.st_mode):
                continue
            same = info.st_size in sizes and digest((tree / path).read_bytes()) in secret
            if same or (
                _ARCHIVE.search(path) and any(digest(held) in secret for _, held in _members(tree / path, names))
            ):
                found.append(path)
        return found

    async def inspect(self, task: Task, root: Path) -> Sequence[Finding]:
        """Look for the task's target in what the agent will see. Raises EnvironmentFailure."""
        try:
            leaks = await asyncio.to_thread(self.leaks, task, root)
        except OSError as error:
            leaks = [f"{error.filename} cannot be read ({error.strerror})"]
        if leaks and self.mode == "enforce":
            raise EnvironmentFailure(
                f"{root.name} may show the agent the fix of task {task.id} ({leaks[0]}, {len(leaks)} in all)"
            )
        return (self.finding("build", "what the agent sees holds another copy", leaks),) if leaks else ()

    def leaks(self, task: Task, root: Path) -> Sequence[str]:
        """Paths below `root` that show the target, each with why."""
        key = root, task.fingerprint
        with self._lock:  # trials of one task start together: one of them looks
            if key not in self._answers:
                self._answers[key] = sorted(self._look(target_of(task, self.min_bytes), self._image(root)))
                while len(self._answers) > _ANSWERS:
                    self._answers.popitem(last=False)
            return self._answers[key]

    def _image(self, root: Path) -> _Image:
        if root not in self._images:
            self._images[root] = _read(root)
            while len(self._images) > _IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(root)
        return self._images[root]

    def _look(self, target: Target, image: _Image) -> Iterator[str]:
        installed = {path for name in target.names for path in image.modules.get(name, ())}
        known = {_folder(path) for path in installed if _is_base(image, _folder(path), target)}
        installed |= {path for project in target.projects for path in image.projects.get(project, ())}
        yield from (f"{path} is installed" for path in installed if _folder(path) not in known)
        yield from (f"{path} holds history" for path in image.histories)
        for path in image.archives:
            if _released(path) & target.projects or self._holds(image.root / path, target):
                yield f"{path} is an archive of it"
        for size in {size for size, _ in target.secrets}:
            for path in image.by_size.get(size, ()):
                if digest((image.root / path).read_bytes()) in target.secrets:
                    yield f"{path} is equal to a fixed file"
        for name in target.sources:
            for path in image.by_name.get(name, ()):
                if target.resembles(name, (image.root / path).read_bytes(), self.likeness):
                    yield f"{path} is like a changed file"

    def _holds(self, archive: Path, target: Target) -> bool:
        return any(
            digest(data) in target.secrets or target.resembles(name, data, self.likeness)
            for name, data in _members(archive, set(target.sources))
        )


def _read(root: Path) -> _Image:
    """Walk an image once. Raises OSError for a folder that cannot be read, or is not there."""
    walked = walk_files(root)
    image = _Image(root=root, histories=find_history(root, walked, _CODE))
    for path, info in walked:
        parts = path.split("/")
        for number, part in enumerate(parts[1:], start=1):
            if parts[number - 1] in _SITES:
                image.modules[part.partition(".")[0]].add("/".join(parts[: number + 1]))
        if ".dist-info" in path or ".egg-" in path:
            for number, part in enumerate(parts, start=1):
                told = _METADATA.match(part)
                if told:
                    image.projects[normal(told["name"])].add("/".join(parts[:number]))
        if not S_ISREG(info.st_mode):
            continue
        if _ARCHIVE.search(parts[-1]) or ".cache" in parts:
            image.archives.append(path)
        if info.st_size <= _READ_BYTES:
            image.by_size[info.st_size].append(path)
            image.by_name[parts[-1]].append(path)
    return image


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _is_base(image: _Image, site: str, target: Target) -> bool:
    """Whether the copy below a folder of modules is the repository's release: what the fix changes is there as it is
    in the repository, and what it adds is not."""
    wanted = {f"{site}/{module}": held for module, held in target.before.items()}
    there = [path for path in wanted if path in image.by_name.get(PurePosixPath(path).name, ())]
    return bool(there) and all(digest((image.root / path).read_bytes()) == wanted[path] for path in there)


def _released(path: str) -> set[str]:
    """Projects that an archive's name may mean."""
    told = _RELEASE.match(PurePosixPath(path).name)
    if told is None:
        return set()
    name = normal(told["name"])
    return {name, name.removeprefix("python3-"), name.removeprefix("python-")}


def _members(archive: Path, names: set[str]) -> Iterator[tuple[str, bytes]]:
    """Base name and contents of an archive's files of these names; nothing of what is no archive."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.infolist():
                    name = PurePosixPath(member.filename).name
                    if name in names and member.file_size <= _READ_BYTES:
                        yield name, opened.read(member)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as packed:
                for entry in packed:
                    name = PurePosixPath(entry.name).name
                    held = packed.extractfile(entry) if name in names and entry.size <= _READ_BYTES else None
                    if held is not None:
                        yield name, held.read()
    except _NO_ARCHIVE:
        return  # damaged, encrypted or of no kind that is known: nothing that the agent could read more easily
