"""Gives the agent a repository of one commit: nothing of the fix's history can be found in it.

Invariant: after `setup` the tree holds one `.git` with one commit, one branch, no tag, remote, reflog or hook, and no
other trace of version control. The host's git runs in a clean environment, on a tree that no agent has touched yet.
Refuses (EnvironmentFailure) when git fails or is not installed.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from engine.core.errors import EnvironmentFailure
from engine.core.patch import walk_files
from engine.core.records import Finding, Task
from engine.defense.history import is_history
from engine.defense.stage import Stage

NAME = "single_commit_history"
_CLEAN = ("core.hooksPath=/dev/null", "core.autocrlf=false", "core.logAllRefUpdates=false", "commit.gpgSign=false")
_CONFIG = "[user]\n\tname = agent\n\temail = agent@localhost\n[gc]\n\tauto = 0\n"


class SingleCommitHistory(Stage):
    """A fresh repository of one commit (`contracts.Defense`)."""

    name = NAME

    def __init__(self, *, date: str, message: str) -> None:
        self.date = date
        self.message = message

    async def setup(self, task: Task, tree: Path) -> Sequence[Finding]:
        """Remove every trace of version control, then commit the tree."""
        removed = await asyncio.to_thread(remove_history, tree)
        await self._git(tree, "init", "--quiet", "--template=", "--initial-branch=main")
        await self._git(tree, "add", "--all", "--force", ".")
        await self._git(tree, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", self.message)
        with (tree / ".git" / "config").open("a", encoding="utf-8") as config:
            config.write(_CONFIG)
        (tree / ".git" / "COMMIT_EDITMSG").unlink(missing_ok=True)
        if not removed:
            return ()
        detail = "version control data of the source was removed"
        return (Finding(stage=NAME, phase="setup", detail=detail, paths=tuple(removed[:50])),)

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


def remove_history(tree: Path) -> list[str]:
    """Remove all version control data below a host tree; returns what was removed (relative paths)."""
    found = {
        next("/".join(parts[: i + 1]) for i in range(len(parts)) if is_history(parts[i]))
        for path, _ in walk_files(tree)
        if is_history(path)
        for parts in [path.split("/")]
    }
    for path in sorted(found):
        target = tree / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()
    return sorted(found)
