"""The tree that is graded: the base, the patch by contents, and the grader's own tests in place of the agent's.

Invariant: below `test_paths` there is nothing but the withheld files and the canaries; every `conftest.py` elsewhere is
the base's. Built on the host, before anything enters a sandbox. Refuses a patch made against another base
(`GraderError`); paths that leave the repository are left out of what is graded, with a finding.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from engine.core.errors import GraderError, PatchError
from engine.core.patch import apply_patch, safe_path, under, without
from engine.core.records import Finding, Patch, Task
from engine.verify.canaries import CanaryFile


def assemble(task: Task, patch: Patch, canaries: Sequence[CanaryFile], tree: Path) -> tuple[Finding, ...]:
    """Build the graded tree in a new host folder.

    Raises GraderError when the patch belongs to another base, PatchError when what is left of it cannot be applied."""
    patch, findings = keep_out(task, patch)
    for change in patch.changes:
        file = task.repository / change.path
        if (file.read_bytes() if file.is_file() else None) != change.before:
            raise GraderError(f"task {task.id}: the patch of {change.path} was made against another base")
    shutil.copytree(task.repository, tree)
    apply_patch(patch, tree)
    for path in task.test_paths:
        target = tree / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    shutil.copytree(task.tests, tree, dirs_exist_ok=True)
    for canary in canaries:
        (tree / canary.path).write_text(canary.source, encoding="utf-8")
    return findings


def lay_over(files: Mapping[str, bytes], tree: Path) -> None:
    """Put other contents into files of a graded tree, with the times that were theirs: nothing tells that they are
    other."""
    for path, contents in files.items():
        times = (tree / path).stat()
        (tree / path).write_bytes(contents)
        os.utime(tree / path, ns=(times.st_atime_ns, times.st_mtime_ns))


def keep_out(task: Task, patch: Patch) -> tuple[Patch, tuple[Finding, ...]]:
    """The patch less what belongs to the grader and less paths outside the repository."""
    outside = tuple(path for path in patch.paths if not _is_safe(path))
    graders = tuple(path for path in patch.paths if path not in outside and _is_graders(task, path))
    findings = [
        Finding(stage="verify", phase="grade", detail=detail, paths=paths, acted=True)
        for detail, paths in (
            ("changes outside the repository were not graded", outside),
            ("changes to tests and conftest.py were not graded", graders),
        )
        if paths
    ]
    return without(patch, (*outside, *graders)), tuple(findings)


def _is_graders(task: Task, path: str) -> bool:
    return under(path, task.test_paths) or PurePosixPath(path).name.lower() == "conftest.py"


def _is_safe(path: str) -> bool:
    try:
        safe_path(path)
    except PatchError:
        return False
    return True
