"""The repositories of task rows, from clones on this machine: the tree of a commit, without a checkout.

Invariant: git is asked for objects alone (`ls-tree`, `cat-file`), so no hook, filter or attribute of a repository acts,
nothing is fetched and nothing in the clone is changed. Refuses links, which no task directory may hold. Submodules are
left out, as they are in a clone that was made without them.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import ConfigError, PatchError
from engine.core.patch import safe_path

_QUIET = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
_TIMEOUT_S = 300


class Checkouts:
    """Clones below one folder: `OWNER__NAME`, `OWNER/NAME` or `NAME`, each plain or bare (`NAME.git`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tree(self, repository: str, commit: str) -> Mapping[str, tuple[bytes, bool]]:
        """Relative path → (contents, executable) of every file at a commit. Raises ConfigError."""
        clone = self._clone(repository)
        if _git(clone, "cat-file", "-t", f"{commit}^{{commit}}", check=False).strip() != b"commit":
            raise _wrong(clone, f"does not hold the commit {commit}", "fetch it there")
        entries = []
        for line in _git(clone, "ls-tree", "-r", "-z", commit).split(b"\0"):
            if not line:
                continue
            facts, _, name = line.partition(b"\t")
            mode, kind, digest = facts.decode().split()
            if kind != "commit":
                entries.append((_checked(clone, name, mode), mode == "100755", digest))
        contents = _blobs(clone, [digest for _, _, digest in entries])
        return {path: (data, executable) for (path, executable, _), data in zip(entries, contents, strict=True)}

    def _clone(self, repository: str) -> Path:
        names = (repository.replace("/", "__"), repository, repository.rpartition("/")[2])
        for name in names:
            for path in (self._folder / name, self._folder / f"{name}.git"):
                if (path / ".git").exists() or (path / "HEAD").is_file():
                    return path
        raise _wrong(self._folder, f"holds no clone of {repository}", f"clone it there as {names[0]}")


def _wrong(place: Path, problem: str, way_out: str) -> ConfigError:
    return ConfigError("checkouts", str(place), problem, way_out)


def _checked(clone: Path, name: bytes, mode: str) -> str:
    try:
        path = safe_path(name.decode(errors="surrogateescape"))
    except PatchError as error:
        raise _wrong(clone, str(error), "leave the task out") from error
    if mode == "120000":
        raise _wrong(clone, f"the commit's tree holds a link ({path})", "leave the task out")
    return path


def _blobs(clone: Path, digests: list[str]) -> list[bytes]:
    """The contents of objects, in order."""
    answer = memoryview(_git(clone, "cat-file", "--batch", given="".join(f"{digest}\n" for digest in digests).encode()))
    found: list[bytes] = []
    place = 0
    for digest in digests:
        end = place + bytes(answer[place : place + 200]).index(b"\n")
        head = bytes(answer[place:end]).split()
        if len(head) != 3 or head[1] != b"blob":
            raise _wrong(clone, f"does not hold the object {digest} (a partial clone?)", "clone it whole")
        size = int(head[2])
        found.append(bytes(answer[end + 1 : end + 1 + size]))
        place = end + size + 2
    return found


def _git(clone: Path, *arguments: str, given: bytes = b"", check: bool = True) -> bytes:
    """Standard output of a git command. Raises ConfigError."""
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *arguments],
            input=given,
            capture_output=True,
            env={**os.environ, **_QUIET},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _wrong(clone, f"git cannot be run there ({error})", "install git, or mend the clone") from error
    if check and done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())[:160]
        raise _wrong(clone, f"git {arguments[0]} failed ({said})", "mend the clone")
    return done.stdout
