"""`job=reap`: removes what a `kill -9` left behind, of any run of this user on this machine.

Sandboxes with their mounts, containers and services, temporary folders, half-made downloads and images in the cache,
scratch folders and half-written files of the runs under `run.root`; with a runtime whose sandboxes lie elsewhere
(`sandbox=kubernetes`, `podman_pool`) also what is left there; and, which no other job removes within their time, the
sandboxes that `job=trial job.keep=true` left running (`job.kept=tell`: says how long they have, and lets them be).
Whatever has a living process is left alone: liveness is a lock that the kernel drops with the process; but a sandbox
that is over its time by more than its owner needs to end it goes, because that owner hangs. What cannot be removed, or
claimed, keeps nothing else from being removed, and is named at the end. Every job does this for what is its own; this
one does it for all, at once. Processes are not its concern: each ends with the one that started it (`supervise.py`).
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from engine.config.built import Built
from engine.core.contracts import RemoteRuntime
from engine.core.errors import RunError
from engine.core.paths import cache_dir
from engine.core.temporary import remove_abandoned
from engine.core.whole import remove_drafts
from engine.run.directory import remove_leftovers
from engine.sandbox import ledger
from engine.store.claim import claim
from engine.store.layout import Layout

_CACHES = ("disks", "images", "images/.layers", "models", "sdists", "tasks", "written")
"""Folders of the cache in which something is made beside its final place."""
_RECORDS = ("demonstrations", "laptop", "proven")
"""Folders of the cache in which single files are kept as they come."""
_DRAFT_S = 600.0
"""Nobody locks a single file: its draft is abandoned when it is older than any writing takes."""


class ReapJob:
    """Names what it removed, and what is kept on purpose and how long, a line each.

    Args:
        kept: what becomes of sandboxes that were left running on purpose and are within their time.
    """

    def __init__(self, *, kept: Literal["remove", "tell"]) -> None:
        self.kept = kept

    async def run(self, built: Built) -> int:
        """Exit code 0 when nothing is left. Raises RunError naming what could not be removed, after the rest is."""
        removed, problems = await asyncio.to_thread(_reap, built.directory.parent, left_too=self.kept == "remove")
        if isinstance(built.sandbox, RemoteRuntime):
            names, stays = await built.sandbox.reap()
            removed += [f"sandbox {name}" for name in names]
            problems += stays
        for line in removed:
            print(f"removed {line}")
        kept = [f"kept sandbox {folder.name}: {ledger.remains(folder)}" for folder in ledger.left_rooms()]
        for line in kept:
            print(line)
        if problems:
            raise RunError(f"not removed: {'; '.join(problems)}; remove these by hand, or as a user who may")
        if not removed and not kept:
            print("nothing was left behind")
        return 0


def _reap(runs: Path, *, left_too: bool) -> tuple[list[str], list[str]]:
    """What was removed, and what could not be and why; whatever one place does, the others are looked at."""
    removed: list[str] = []
    problems: list[str] = []
    try:
        names, problems = ledger.reap_sessions(None, left_too=left_too)
        removed += [f"sandbox {name}" for name in names]
    except OSError as error:  # the records of all of them cannot be had
        problems.append(f"{error.filename or 'sandboxes'} ({error.strerror})")
    for place, remove in _places(runs, problems):
        try:
            found = remove()
        except OSError as error:
            problems.append(f"{error.filename or place} ({error.strerror})")
            continue
        for path in found:
            if path.exists():
                problems.append(f"{path} (something in it stays)")
            else:
                removed.append(str(path))
    return removed, problems


def _places(runs: Path, problems: list[str]) -> Iterator[tuple[Path, Callable[[], Sequence[Path]]]]:
    """Where something may be left, and what removes it."""
    yield Path(tempfile.gettempdir()), partial(remove_abandoned, "*", None, problems)
    for name in _CACHES:
        yield cache_dir() / name, partial(remove_abandoned, "*", cache_dir() / name, problems)
    for folder in (*(cache_dir() / name for name in _RECORDS), runs / "sweeps"):
        yield folder, partial(remove_drafts, folder, _DRAFT_S)
    for root in sorted(runs.glob("*/")):
        yield root, partial(_of_run, Layout(root=root))


def _of_run(layout: Layout) -> list[Path]:
    """Raises OSError where the lock cannot be had, whatever holds it or not."""
    if not layout.lock.is_file():
        return []
    with claim(layout) as holder:
        return [] if holder else remove_leftovers(layout)
