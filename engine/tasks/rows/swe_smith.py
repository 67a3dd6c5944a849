"""SWE-smith: `patch` *introduces* the bug into a repository that is right, so the reference is its reverse.

The repository is named by its mirror, `swesmith/OWNER__NAME.COMMIT`: the real one at that commit, with `patch` on it,
is what an agent receives. Rows that name no such mirror keep their own `base_commit`, which has the bug already. The
tests are the repository's, so there is no test patch.
"""

import re

from engine.core.errors import PatchError
from engine.core.unified import FileDiff, render, reverse
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.swe_bench import WORKDIR, commit, failing_tests, own_image, passing_tests, said_language
from engine.tasks.rows.values import Raw

_MIRROR = re.compile(r"(?:[^/]+/)?(.+?)__(.+)\.([0-9a-f]{7,40})")


def read_swe_smith(raw: Raw) -> TaskRow:
    """A row of SWE-smith."""
    identity = raw.named(raw.text("instance_id"))
    bug = raw.text("patch")
    files = raw.diff("patch", bug)
    repository, based = mirrored(raw)
    if based is None and not raw.has("base_commit"):
        problem = "names no commit, and there is no base_commit"
        raise raw.wrong("repo", repository, problem, "write swesmith/OWNER__NAME.COMMIT, or add base_commit")
    fail_to_pass = failing_tests(raw)
    return TaskRow(
        format="swe_smith",
        id=identity,
        instruction=raw.text("problem_statement"),
        hints=raw.optional("hints_text") or "",
        repository=repository,
        base_commit=based or commit(raw, "base_commit"),
        setup_patch=bug if based else "",
        reference=_undone(raw, bug, files),
        test_patch="",
        fail_to_pass=fail_to_pass,
        pass_to_pass=passing_tests(raw, fail_to_pass),
        expected={},
        image=own_image(raw),
        workdir=WORKDIR,
        recipe="",
        install=(),
        test_command=raw.texts("test_cmd"),
        log_parser=raw.optional("log_parser"),
        environment_setup_commit=None,
        version=raw.optional("version"),
        created_at=raw.time("created_at"),
        language=said_language(raw, files),
        license=raw.optional("license"),
        split=raw.optional("split"),
    )


def mirrored(raw: Raw) -> tuple[str, str | None]:
    """(repository, commit) that the mirror's name tells; a name of another form, and None."""
    name = raw.text("repo")
    found = _MIRROR.fullmatch(name)
    return (f"{found[1]}/{found[2]}", found[3]) if found else (name, None)


def _undone(raw: Raw, bug: str, files: tuple[FileDiff, ...]) -> str:
    try:
        return render(reverse(files))
    except PatchError as error:
        problem = f"has no reverse, so the task has no reference: {error}"
        raise raw.wrong("patch", bug, problem, "leave the row out (bad_rows=leave_out)") from error
