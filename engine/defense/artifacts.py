"""Takes what a task declares beside the patch: files that the agent made which no patch can hold.

Invariants: nothing is run and no link is followed (`Sandbox.read`, `Sandbox.download`); what is taken is regular files
alone, each within the declared paths, and together within the bounds. What is not taken leaves a finding and the trial
goes on: it is graded without, so that nobody buys an exclusion by what cannot be carried. What is not there is no
finding: the tests say what they need.
"""

import asyncio
import stat
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.core.contracts import Sandbox
from engine.core.errors import SandboxError
from engine.core.patch import may_hold, walk_files
from engine.core.records import Artifact, Finding, Task
from engine.defense.stage import refusals

NAME = "artifacts"


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A file that may be taken; read only once it is known to fit."""

    path: str
    size: int
    executable: bool
    source: Path | bytes


def artifacts_within(task: Task) -> list[str]:
    """Declared paths in the repository, relative to it."""
    paths = [PurePosixPath(path) for path in task.artifacts]
    return [str(path.relative_to(task.workdir)) for path in paths if path.is_relative_to(task.workdir)]


async def take_artifacts(
    declared: Sequence[str], sandbox: Sandbox, folder: Path, bounds: tuple[int, int]
) -> tuple[tuple[Artifact, ...], tuple[Finding, ...]]:
    """What lies at the declared paths, sorted, and what was refused. `folder`: a new host folder to copy to; `bounds`:
    most files, most bytes.

    A sandbox that is lost reads as one in which nothing was made, so whoever asks takes the tree after this."""
    seen: list[_Seen] = []
    refused: dict[str, list[str]] = defaultdict(list)
    for number, path in enumerate(declared):
        single = await sandbox.read(path, bounds[1] + 1)
        if single is not None:
            seen.append(_Seen(path=path, size=len(single), executable=False, source=single))
            continue
        copy = folder / str(number)
        try:
            await sandbox.download(path, copy)
        except SandboxError:
            continue  # nothing there, or a link on the way
        seen += await asyncio.to_thread(_look, path, copy, refused)
    seen.sort(key=lambda one: one.path)
    kept = _within(seen, bounds)
    paths = {one.path for one in kept}
    over = f"over {bounds[0]} files or {bounds[1] >> 20} MiB together"
    refused[over] += [one.path for one in seen if one.path not in paths]
    return await asyncio.to_thread(_take, kept), refusals(NAME, "not carried over", refused)


def _look(path: str, copy: Path, refused: dict[str, list[str]]) -> list[_Seen]:
    """Files that may be taken; what may not is added to `refused`, by reason."""
    files: list[_Seen] = []
    for name, info in walk_files(copy):
        whole = str(PurePosixPath(path) / name)
        if not stat.S_ISREG(info.st_mode):
            refused["a link"].append(whole)  # special files stayed in the sandbox
        elif not may_hold(name):
            refused["a name that may not be carried"].append(whole)
        else:
            executable = bool(info.st_mode & stat.S_IXUSR)
            files.append(_Seen(path=whole, size=info.st_size, executable=executable, source=copy / name))
    return files


def _take(files: Iterable[_Seen]) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(
            path=one.path,
            contents=one.source if isinstance(one.source, bytes) else one.source.read_bytes(),
            executable=one.executable,
        )
        for one in files
    )


def _within(files: Sequence[_Seen], bounds: tuple[int, int]) -> list[_Seen]:
    """The first so many; of these the largest go until the rest fits."""
    kept = list(files[: bounds[0]])
    total = sum(one.size for one in kept)
    for largest in sorted(kept, key=lambda one: (one.size, one.path), reverse=True):
        if total <= bounds[1]:
            break
        kept.remove(largest)
        total -= largest.size
    return kept
