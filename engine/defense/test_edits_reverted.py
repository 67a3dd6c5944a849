"""Takes out of the patch what would steer the tests rather than mend the code, and says so.

Invariant: the patch that leaves here changes nothing below `test_paths`, no file that pytest or the interpreter reads
by its mere name, and no pytest section of a shared configuration file. The honest part of the patch stays. Where this
defence only observes, all of it stays.
"""

import configparser
import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from engine.core.patch import under, without
from engine.core.records import FileChange, Finding, Patch, Task
from engine.core.task_contracts import Mode
from engine.defense.stage import Stage

NAME = "test_edits_reverted"


class TestEditsReverted(Stage):
    """Edits of tests and of what steers them are reverted and noted (`task_contracts.Defense`)."""

    __test__ = False
    name = NAME

    def __init__(self, *, mode: Mode, names: Sequence[str], suffixes: Sequence[str]) -> None:
        self.mode = mode
        self.names = names
        self.suffixes = suffixes

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """Drop such changes; one finding for each kind."""
        kinds: dict[str, list[str]] = {}
        for change in patch.changes:
            kind = self._kind(task, change)
            if kind:
                kinds.setdefault(kind, []).append(change.path)
        findings = tuple(self.finding("extract", kind, paths) for kind, paths in kinds.items())
        if self.mode != "enforce":
            return patch, findings
        return without(patch, (path for paths in kinds.values() for path in paths)), findings

    def _kind(self, task: Task, change: FileChange) -> str:
        """Why a change is taken out; empty when it stays."""
        name = PurePosixPath(change.path).name.lower()
        if under(change.path, task.test_paths):
            return "an edit of the tests"
        if name in self.names or name.endswith(tuple(self.suffixes)):
            return "a file that steers pytest or the interpreter by its name"
        if _sections_differ(name, change):
            return "an edit of pytest's configuration"
        return ""


def _sections_differ(name: str, change: FileChange) -> bool:
    try:
        return _pytest_section(name, change.before) != _pytest_section(name, change.after)
    except RecursionError:
        return True  # so deep that nothing reads it


def _pytest_section(name: str, contents: bytes | None) -> object:
    """pytest's part of a shared configuration file, comparable; None where there is none."""
    if contents is None or name not in ("setup.cfg", "tox.ini", "pyproject.toml"):
        return None
    try:
        text = contents.decode()
        if name == "pyproject.toml":
            return tomllib.loads(text).get("tool", {}).get("pytest")
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        section = "tool:pytest" if name == "setup.cfg" else "pytest"
        return dict(parser[section]) if parser.has_section(section) else None
    except (ValueError, configparser.Error, AttributeError):
        return contents
