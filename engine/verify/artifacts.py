"""Lays the files that a task declares beside the patch into the sandbox that grades, as copies.

Invariants: nothing is laid but at or below a declared path, nothing over the tests, and no `conftest.py`; the grader's
own files come afterwards. A file that cannot be laid (it would go through a link of the image, the disk is full) leaves
a finding and no exclusion: the tests then miss it. A sandbox that is lost is told by what is run in it next.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from engine.core.contracts import Sandbox
from engine.core.errors import SandboxError
from engine.core.patch import under
from engine.core.records import Artifact, Finding, Task


async def lay(task: Task, artifacts: Sequence[Artifact], sandbox: Sandbox, folder: Path) -> tuple[Finding, ...]:
    """Put artefacts where the tests expect them. `folder`: a new host folder to stage them in."""
    outside = tuple(one.path for one in artifacts if not _declared(task, one.path))
    graders = tuple(one.path for one in artifacts if one.path not in outside and _is_graders(task, one.path))
    findings = [
        Finding(stage="verify", phase="grade", detail=detail, paths=paths, acted=True)
        for detail, paths in (
            ("artefacts that the task does not declare were not graded", outside),
            ("artefacts in place of tests and conftest.py were not graded", graders),
        )
        if paths
    ]
    kept = [one for one in artifacts if one.path not in (*outside, *graders)]
    for number, root in enumerate(task.artifacts):
        try:
            await _lay(root, [one for one in kept if under(one.path, (root,))], sandbox, folder / str(number))
        except SandboxError as error:
            detail = f"artefacts could not be laid: {error}"
            findings.append(Finding(stage="verify", phase="grade", detail=detail, paths=(root,), acted=True))
    return tuple(findings)


async def _lay(root: str, files: Sequence[Artifact], sandbox: Sandbox, staged: Path) -> None:
    if [one.path for one in files] == [root]:
        await sandbox.write({root: files[0].contents})
    elif files:
        await asyncio.to_thread(_stage, root, files, staged)
        await sandbox.upload(staged, root)


def _stage(root: str, files: Sequence[Artifact], staged: Path) -> None:
    for one in files:
        target = staged / PurePosixPath(one.path).relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(one.contents)
        target.chmod(0o755 if one.executable else 0o644)


def _declared(task: Task, path: str) -> bool:
    return under(path, task.artifacts) and ".." not in PurePosixPath(path).parts


def _is_graders(task: Task, path: str) -> bool:
    tests = [str(PurePosixPath(task.workdir) / one) for one in task.test_paths]
    return under(path, tests) or PurePosixPath(path).name.lower() == "conftest.py"
