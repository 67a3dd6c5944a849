"""Gives the agent a repository of one commit: nothing of the fix's history can be found in it.

Invariant: after `setup` the tree holds one `.git` with one commit, one branch, no tag, remote, reflog or hook, and no
other trace of version control. The host's git runs in a clean environment, on a tree that no agent has touched yet;
for a tree of the same contents it has run once, and what it made is written again, since it would make the same.
Where this defence only observes, the source's history is noted and left as it is.
Refuses (EnvironmentFailure) when git fails or is not installed.
"""

import asyncio
import hashlib
import os
import re
import shutil
import stat
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from engine.core.errors import EnvironmentFailure
from engine.core.patch import walk_files
from engine.core.records import Finding, Patch, Task
from engine.core.task_contracts import Mode
from engine.defense.history import find_history
from engine.defense.stage import Stage, printable

NAME = "single_commit_history"
_CLEAN = ("core.hooksPath=/dev/null", "core.autocrlf=false", "core.logAllRefUpdates=false", "commit.gpgSign=false")
_KEPT_BYTES = 64 << 20
"""Repositories that are kept in memory, the latest ones."""
_READ_BYTES = 1 << 16
_RUNS = re.compile(rb"hookspath|fsmonitor|filter|textconv|sshcommand|pager|editor|\bcommand\b|=\s*!", re.IGNORECASE)
"""Of git's settings, those that name a program."""
_CONFIG = "[user]\n\tname = agent\n\temail = agent@localhost\n[gc]\n\tauto = 0\n"


class SingleCommitHistory(Stage):
    """A fresh repository of one commit (`task_contracts.Defense`)."""

    name = NAME

    def __init__(self, *, mode: Mode, date: str, message: str) -> None:
        self.mode = mode
        self.date = date
        self.message = message
        self._made: OrderedDict[bytes, _Repository] = OrderedDict()

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """Remove every trace of version control, then commit the tree."""
        found = await asyncio.to_thread(_find_history, tree)
        findings = (self.finding("setup", "version control data of the source", found),) if found else ()
        if self.mode != "enforce":
            return findings
        await asyncio.to_thread(_remove, tree, found)
        key = await asyncio.to_thread(_contents, tree)
        if key in self._made:
            self._made.move_to_end(key)
            await asyncio.to_thread(_write, self._made[key], tree / ".git")
        else:
            await self._commit(tree)
            self._keep(key, await asyncio.to_thread(_read, tree / ".git"))
        return findings

    def extract(self, task: Task, tree: Path, patch: Patch) -> tuple[Patch, Sequence[Finding]]:
        """Note what the agent made of its repository that acts by itself; nothing of it is ever run or read."""
        own = _acting(tree / ".git")
        if self.mode != "enforce":  # the repository is the source's, which has hooks of its own
            given = _acting(task.repository / ".git")
            own = {path: text for path, text in own.items() if given.get(path) != text}
        detail = "the agent's repository has hooks, or settings that run programs"
        paths = printable([f".git/{path}" for path in own])
        return patch, (Finding(stage=NAME, phase="extract", detail=detail, paths=paths),) if own else ()

    def _keep(self, key: bytes, made: "_Repository") -> None:
        self._made[key] = made
        while sum(map(_size, self._made.values())) > _KEPT_BYTES:
            self._made.popitem(last=False)

    async def _commit(self, tree: Path) -> None:
        await self._git(tree, "init", "--quiet", "--template=", "--initial-branch=main")
        await self._git(tree, "add", "--all", "--force", ".")
        await self._git(tree, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", self.message)
        with (tree / ".git" / "config").open("a", encoding="utf-8") as config:
            config.write(_CONFIG)
        (tree / ".git" / "COMMIT_EDITMSG").unlink(missing_ok=True)

    async def _git(self, tree: Path, *arguments: str) -> None:
        settings = [part for setting in _CLEAN for part in ("-c", setting)]
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                *settings,
                *arguments,
                cwd=tree,
                env=self._environment(tree),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except FileNotFoundError as error:
            raise EnvironmentFailure("git is not installed on the host: apt-get install -y git") from error
        try:
            output, _ = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
            raise
        if process.returncode != 0:
            said = " ".join(output.decode(errors="replace").split())
            raise EnvironmentFailure(f"git {arguments[0]} failed in the staged repository: {said}")

    def _environment(self, tree: Path) -> dict[str, str]:
        """Nothing of the host's or a user's git configuration; a commit that is the same everywhere."""
        people = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "base"), ("EMAIL", "base@localhost"), ("DATE", self.date))
        }
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(tree.parent),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            **people,
        }


def _acting(folder: Path) -> dict[str, bytes]:
    """Hooks, and settings in which a program is named, with how each begins; of what an agent has left, which may be
    anything."""
    if not _is_folder(folder):
        return {}
    hooks = folder / "hooks"
    found = {f"hooks/{hook.name}": _beginning(hook) for hook in sorted(hooks.iterdir())} if _is_folder(hooks) else {}
    for path in ("config", "info/attributes"):
        begins = _beginning(folder / path) if _is_folder((folder / path).parent) else b""
        if _RUNS.search(begins):
            found[path] = begins
    return found


def _beginning(file: Path) -> bytes:
    """Of a regular file; nothing of anything else."""
    if not stat.S_ISREG(_mode(file)):
        return b""
    with file.open("rb") as opened:
        return opened.read(_READ_BYTES)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Of the path itself, no link followed; 0 where there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _find_history(tree: Path) -> tuple[str, ...]:
    """Paths of all version control data below a host tree."""
    return find_history(tree, walk_files(tree))


def _remove(tree: Path, paths: Sequence[str]) -> None:
    for path in paths:
        target = tree / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()


_Repository = Sequence[tuple[str, int, bytes | None]]
"""Relative path, mode and contents (None: a folder) of everything in a `.git`, folders before what they hold."""


def _contents(tree: Path) -> bytes:
    """A digest over all that a commit of this tree depends on: paths, contents, targets of links, executable bits."""
    digest = hashlib.sha256()
    for path, info in walk_files(tree):
        kind = stat.S_IFMT(info.st_mode) | info.st_mode & stat.S_IXUSR
        file = tree / path
        held = os.fsencode(file.readlink()) if stat.S_ISLNK(info.st_mode) else file.read_bytes()
        digest.update(b"%o %d %d " % (kind, len(os.fsencode(path)), len(held)) + os.fsencode(path) + held)
    return digest.digest()


def _read(folder: Path) -> _Repository:
    entries = sorted(folder.rglob("*"))
    return [
        (str(entry.relative_to(folder)), entry.stat().st_mode & 0o777, None if entry.is_dir() else entry.read_bytes())
        for entry in entries
    ]


def _write(made: _Repository, folder: Path) -> None:
    folder.mkdir()
    for path, mode, contents in made:
        if contents is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(contents)
        (folder / path).chmod(mode)


def _size(made: _Repository) -> int:
    return sum(len(contents or b"") for _, _, contents in made)
