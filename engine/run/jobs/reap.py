"""`job=reap`: removes what a `kill -9` left behind, of any run of this user on this machine.

Sandboxes with their mounts, containers and services, temporary folders, half-made downloads and images in the cache,
scratch folders and half-written files of the runs under `run.root`. Whatever has a living process is left alone:
liveness is a lock that the kernel drops with the process. Every job does this for what is its own; this one does it for
all, at once. Processes are not its concern: each ends with the one that started it (`core/supervise.py`).
"""

import asyncio
from pathlib import Path

from engine.config.built import Built
from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.core.temporary import remove_abandoned
from engine.core.whole import remove_drafts
from engine.run.directory import remove_leftovers
from engine.sandbox import ledger
from engine.store.claim import claim
from engine.store.layout import Layout

_CACHES = ("disks", "images", "models", "sdists", "tasks", "written")
"""Folders of the cache in which something is made beside its final place."""
_RECORDS = ("demonstrations", "laptop", "proven")
"""Folders of the cache in which single files are kept as they come."""
_DRAFT_S = 600.0
"""Nobody locks a single file: its draft is abandoned when it is older than any writing takes."""


class ReapJob:
    """Names what it removed, a line each."""

    async def run(self, built: Built) -> int:
        """Exit code 0 when nothing is left. Raises SandboxError naming what could not be removed."""
        removed = [str(folder) for folder in await asyncio.to_thread(_folders, built.directory.parent)]
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
    for folder in (*(cache_dir() / name for name in _RECORDS), runs / "sweeps"):
        removed += remove_drafts(folder, _DRAFT_S)
    for root in sorted(runs.glob("*/")):
        layout = Layout(root=root)
        if layout.lock.is_file():
            with claim(layout) as holder:
                if not holder:
                    removed += remove_leftovers(layout)
    return removed


def _tell(removed: list[str]) -> None:
    for line in removed:
        print(f"removed {line}")
    if not removed:
        print("nothing was left behind")
