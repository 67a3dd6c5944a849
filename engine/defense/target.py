"""What a task is about, as its leaks would show it: names, contents and lines that another copy of the package has.

Read from the repository and the reference patch alone. Where there is no reference, every Python file that is no test
is taken for one that the fix may change.
"""

import hashlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from configparser import Error as ConfigurationError
from configparser import RawConfigParser
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.core.patch import under, walk_files
from engine.core.records import Task

_COMMON = frozenset({"setup", "conftest", "doc", "docs", "example", "examples", "test", "tests", "tools", "scripts"})
"""Folders and files beside a package, which other packages have as well."""
_FEWEST_LINES = 8
"""Of a file with fewer lines of its own, a likeness says nothing."""
_SHORTEST = 4
"""Characters of a line that is no mere bracket."""
_SETUP_NAME = re.compile(r"""\bname\s*=\s*["']([\w.-]+)["']""")
Lines = frozenset[bytes]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What would be recognised."""

    names: frozenset[str]
    """What the package is imported by."""
    projects: frozenset[str]
    """What it is installed by, normalised."""
    secrets: frozenset[tuple[int, bytes]]
    """Size and sha256 of contents that the fix brings about and the repository has nowhere."""
    sources: Mapping[str, tuple[Lines, ...]]
    """Name of a file that the fix changes → lines of such files, before the fix and after it."""
    before: Mapping[str, tuple[int, bytes] | None]
    """Path below a folder of modules of each file that the fix changes → its contents in the repository, as `secrets`;
    None: the fix adds it."""

    def resembles(self, name: str, data: bytes, likeness: float) -> bool:
        """Whether a file of this name and these contents is a copy of one that the fix changes, of another release."""
        if digest(data) in self.before.values():
            return False  # the repository's own
        held = _lines(data)
        return any(len(held & wanted) >= likeness * len(wanted) for wanted in self.sources.get(name, ()))


def target_of(task: Task, min_bytes: int) -> Target:
    """The target of a task."""
    changes = [(path, _module(task, path), before, after) for path, before, after in _changes(task)]
    modules = [module for _, module, _, _ in changes if module]
    names = frozenset(module.partition("/")[0].partition(".")[0] for module in modules)
    sources: defaultdict[str, list[Lines]] = defaultdict(list)
    for path, module, *sides in changes:
        for side in sides:
            lines = _lines(side or b"")
            if module and len(lines) >= _FEWEST_LINES and lines not in sources[_base(path)]:
                sources[_base(path)].append(lines)
    return Target(
        names=names,
        projects=frozenset(map(normal, (*names, *_projects(task.repository)))),
        secrets=frozenset(_secrets(task, min_bytes)),
        sources={name: tuple(lines) for name, lines in sources.items()},
        before={module: None if side is None else digest(side) for _, module, side, _ in changes if module},
    )


def normal(project: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", project).lower()


def digest(data: bytes) -> tuple[int, bytes]:
    """Size and sha256."""
    return len(data), hashlib.sha256(data).digest()


def _changes(task: Task) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    """Path, contents before and after."""
    if task.reference is not None:
        yield from ((change.path, change.before, change.after) for change in task.reference.changes)
        return
    for path, _ in walk_files(task.repository):
        if path.endswith(".py") and (task.repository / path).is_file():
            yield path, (task.repository / path).read_bytes(), None


def _module(task: Task, path: str) -> str:
    """A source file's path below the folder that it is imported from; empty for tests and what is beside a package."""
    if under(path, task.test_paths) or not path.endswith((".py", ".pyi", ".pyx")):
        return ""
    roots = sorted((root for root in task.python_path if under(path, [root])), key=len, reverse=True)
    if not roots:
        return ""
    inside = PurePosixPath(path).relative_to(roots[0])
    return "" if inside.parts[0].partition(".")[0] in _COMMON else str(inside)


def _base(path: str) -> str:
    return PurePosixPath(path).name


def _secrets(task: Task, min_bytes: int) -> Iterator[tuple[int, bytes]]:
    after = [change.after for change in task.reference.changes if change.after] if task.reference else []
    known = {digest((task.repository / path).read_bytes()) for path in _files(task.repository)} if after else set()
    yield from (found for found in map(digest, after) if found[0] >= min_bytes and found not in known)


def _files(folder: Path) -> Iterable[str]:
    return (path for path, _ in walk_files(folder) if (folder / path).is_file())


def _lines(data: bytes) -> Lines:
    """Lines that say something: no blank, no bracket, no comment (licences stand in many files)."""
    stripped = (line.strip() for line in data.splitlines())
    return frozenset(line for line in stripped if len(line) >= _SHORTEST and not line.startswith(b"#"))


def _projects(repository: Path) -> Iterator[str]:
    """Names that the repository gives itself."""
    for path, read in (("pyproject.toml", _of_pyproject), ("setup.cfg", _of_setup_cfg)):
        text = _text(repository / path)
        try:
            yield from (name for name in read(text) if isinstance(name, str))
        except (ValueError, ConfigurationError, AttributeError):
            continue  # it says no name that an installer could read
    yield from _SETUP_NAME.findall(_text(repository / "setup.py"))
    yield from re.findall(r"^Name:\s*(\S+)", _text(repository / "PKG-INFO"), re.MULTILINE)


def _of_pyproject(text: str) -> list[object]:
    told = tomllib.loads(text)
    return [told.get("project", {}).get("name"), told.get("tool", {}).get("poetry", {}).get("name")]


def _of_setup_cfg(text: str) -> list[object]:
    parser = RawConfigParser(strict=False)
    parser.read_string(text)
    return [parser.get("metadata", "name", fallback=None)]


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace") if file.is_file() and not file.is_symlink() else ""
