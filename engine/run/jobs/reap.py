"""`job=reap`: removes what a `kill -9` left behind, of any run of this user on this machine.

Sandboxes with their mounts, containers and services, temporary folders, half-made downloads in the cache, and the
scratch folders of the runs under `run.root`. Whatever has a living process is left alone: liveness is a lock that the
kernel drops with the process. Every job does this for what is its own; this one does it for all, at once.
"""

import asyncio
import shutil
from pathlib import Path

from engine.config.built import Built
from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.core.temporary import remove_abandoned
from engine.sandbox import ledger
from engine.store.claim import claim
from engine.store.layout import Layout

_CACHES = ("models", "sdists", "tasks", "written")
"""Folders of the cache in which something is made beside its final place."""


class ReapJob:
    """Names what it removed, a line each."""

    async def run(self, built: Built) -> int:
        """Exit code 0 when nothing is left. Raises SandboxError naming what could not be removed."""
        removed = [f"folder {folder}" for folder in await asyncio.to_thread(_folders, built.directory.parent)]
        try:
            removed += [f"sandbox {name}" for name in await asyncio.to_thread(ledger.reap, None)]
        except SandboxError:
            _tell(removed)
            raise
        _tell(removed)
        return 0


def _folders(runs: Path) -> list[Path]:
    removed = remove_abandoned("*")
    for name in _CACHES:
        removed += remove_abandoned("*", cache_dir() / name)
    for root in sorted(runs.glob("*/")):
        layout = Layout(root=root)
        if layout.lock.is_file() and layout.scratch.is_dir():
            with claim(layout) as holder:
                if not holder:
                    shutil.rmtree(layout.scratch)
                    removed.append(layout.scratch)
    return removed


def _tell(removed: list[str]) -> None:
    for line in removed:
        print(f"removed {line}")
    if not removed:
        print("nothing was left behind")
