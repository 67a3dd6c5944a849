"""What a task's verifier needs beside the patch: `artifacts` of `task.toml`, in Harbor's word and form.

    artifacts = ["build/index.bin", "/tmp/out", {source = "/home/agent/app.db"}]

Paths of files or folders, absolute or relative to the workdir. The reference's own lie below `solution/artifacts`, at
their absolute paths. Refuses, naming file and value: what the engine would have to ignore (services, exclusions, other
destinations), paths that climb, hold one another, or reach where tests, tools or the engine's own files lie, and a task
that brings a reference without its artefacts, since nobody could tell whether it judges.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path, PurePosixPath
from typing import Any

from engine.core.errors import ConfigError
from engine.core.patch import read_tree, under
from engine.core.records import Artifact

_TAKEN = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Of the image, the toolchain, the harness and the kernel."""
_WIDE = ("/", "/tmp", "/home", "/var")  # noqa: S108
"""Folders that hold others' files too; what lies in them may be declared."""


def read_artifacts(config: Mapping[str, Any], file: Path, workdir: str, test_paths: Sequence[str]) -> tuple[str, ...]:
    """Absolute paths, sorted. Raises ConfigError."""
    key, entries = f"{file}: artifacts", config.get("artifacts", [])
    if not isinstance(entries, list):
        raise ConfigError(key, entries, "is no list", 'write artifacts = ["/path"]')
    paths = [str(PurePosixPath(workdir) / _source(key, entry)) for entry in entries]
    tests = [str(PurePosixPath(workdir) / path) for path in test_paths]
    for path in paths:
        _check(key, path, workdir, tests)
    for one, other in permutations(paths, 2):
        if under(one, (other,)):
            raise ConfigError(key, one, f"lies in {other}, which is declared too", "name it once")
    return tuple(sorted(paths))


def reference_artifacts(solution: Path, declared: Sequence[str]) -> tuple[Artifact, ...]:
    """What the reference made. Raises ConfigError where it lacks a declared path, PatchError for no plain file."""
    folder = solution / "artifacts"
    tree = read_tree(folder) if folder.is_dir() else {}
    found = [
        Artifact(path=f"/{path}", contents=data, executable=executable) for path, (data, executable) in tree.items()
    ]
    for one in found:
        if not under(one.path, declared):
            raise ConfigError(str(folder), one.path, "is not declared in task.toml", "add its path to artifacts")
    for path in declared:
        if not any(under(one.path, (path,)) for one in found):
            problem = "is declared, and the reference brings nothing there: nobody could tell whether the task judges"
            way_out = f"put what solution/solve.sh makes below {folder}{path}"
            raise ConfigError(f"{solution.parent}/task.toml: artifacts", path, problem, way_out)
    return tuple(sorted(found, key=lambda one: one.path))


def _source(key: str, entry: Any) -> str:
    if isinstance(entry, dict):
        ignored = sorted(name for name, value in entry.items() if name != "source" and value)
        if ignored:
            problem = f"{', '.join(ignored)} of an artefact is not supported: all of it is carried to where it was"
            raise ConfigError(key, entry, problem, "keep `source` alone")
        entry = entry.get("source")
    if not isinstance(entry, str) or not entry.strip("/") or "\0" in entry:
        raise ConfigError(key, entry, "names no path", 'write "/path" or {source = "/path"}')
    if ".." in PurePosixPath(entry).parts:
        raise ConfigError(key, entry, "climbs", "write the path without `..`")
    return entry


def _check(key: str, path: str, workdir: str, tests: Sequence[str]) -> None:
    if under(path, _TAKEN) or path in _WIDE:
        problem = "holds files of the image, of its tools or of the engine, which no agent may replace"
        raise ConfigError(
            key,
            path,
            problem,
            "have the agent write to a folder of its own: one in the repository, /tmp/out, /home/agent/out",
        )
    if path == workdir or under(workdir, (path,)):
        raise ConfigError(key, path, f"holds the repository {workdir}", "name what lies in it; text needs no name")
    for test in tests:
        if under(path, (test,)) or under(test, (path,)):
            raise ConfigError(key, path, f"meets the tests at {test}", "keep artefacts and tests apart")
