"""SWE-bench (full, Lite, Verified, Multilingual) and SWE-Gym: a repository, a commit, two diffs and two lists of tests.

Refuses a row of SWE-smith that is taken for one of these: its `patch` makes the bug, so it would be learnt backwards.
"""

import re

from engine.core.unified import FileDiff
from engine.tasks.rows.record import Format, TaskRow
from engine.tasks.rows.values import Raw, language_named, language_of

WORKDIR = "/testbed"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_IMAGES = {
    "swe_bench": ("docker.io/swebench/sweb.eval.x86_64.", "_1776_"),
    "swe_gym": ("docker.io/xingyaoww/sweb.eval.x86_64.", "_s_"),
}
"""How the publishers name the image of an instance: what stands ahead of its id, and what for `__`."""
_IMAGE_COLUMNS = ("docker_image", "image_name", "image_url")


def read_swe_bench(raw: Raw) -> TaskRow:
    """A row of SWE-bench."""
    return _published(raw, "swe_bench")


def read_swe_gym(raw: Raw) -> TaskRow:
    """A row of SWE-Gym: as SWE-bench's, with lists, and without the commit of the environment."""
    return _published(raw, "swe_gym")


def _published(raw: Raw, form: Format) -> TaskRow:
    identity = raw.named(raw.text("instance_id"))
    before, instead = _IMAGES[form]
    image = own_image(raw) or f"{before}{identity.lower().replace('__', instead)}:latest"
    return issue_row(raw, form, image=image, workdir=WORKDIR)


def own_image(raw: Raw) -> str | None:
    """The image that the row itself names."""
    return next((image for column in _IMAGE_COLUMNS if (image := raw.optional(column))), None)


def issue_row(raw: Raw, form: Format, *, image: str | None, workdir: str) -> TaskRow:
    """The columns that SWE-bench has given to all sets made of issues and their pull requests."""
    identity = raw.named(raw.text("instance_id"))
    repository = raw.text("repo")
    if repository.startswith("swesmith/"):
        problem = "is a row of SWE-smith, whose patch makes the bug instead of mending it"
        raise raw.wrong("repo", repository, problem, "name its format: format=swe_smith")
    if repository.count("/") != 1:
        raise raw.wrong("repo", repository, "names no repository", "write owner/name")
    reference, tests = raw.text("patch"), raw.text("test_patch")
    files = raw.diff("patch", reference)
    raw.diff("test_patch", tests)
    fail_to_pass = failing_tests(raw)
    return TaskRow(
        format=form,
        id=identity,
        instruction=raw.text("problem_statement"),
        hints=raw.optional("hints_text") or "",
        repository=repository,
        base_commit=commit(raw, "base_commit"),
        setup_patch="",
        reference=reference,
        test_patch=tests,
        fail_to_pass=fail_to_pass,
        pass_to_pass=passing_tests(raw, fail_to_pass),
        expected={},
        image=image,
        workdir=workdir,
        recipe="",
        install=(),
        test_command=raw.texts("test_cmd"),
        log_parser=raw.optional("log_parser"),
        environment_setup_commit=raw.optional("environment_setup_commit"),
        version=raw.optional("version"),
        created_at=raw.time("created_at"),
        language=said_language(raw, files),
        license=raw.optional("license_name") or raw.optional("license"),
        split=raw.optional("split"),
    )


def commit(raw: Raw, column: str) -> str:
    """A commit's id that must be there."""
    value = raw.text(column)
    if not _COMMIT.fullmatch(value):
        raise raw.wrong(column, value, "is no commit", "give its id in hexadecimal digits")
    return value


def failing_tests(raw: Raw) -> tuple[str, ...]:
    """FAIL_TO_PASS, of which there must be some: without, every patch would solve the task."""
    tests = raw.tests("FAIL_TO_PASS")
    if not tests:
        problem = "names no test, so nothing tells a right patch from a wrong one"
        raise raw.wrong("FAIL_TO_PASS", [], problem, "leave the row out (bad_rows=leave_out)")
    return tests


def passing_tests(raw: Raw, fail_to_pass: tuple[str, ...]) -> tuple[str, ...]:
    """PASS_TO_PASS without what FAIL_TO_PASS names too: either way it must pass in the end."""
    return tuple(test for test in raw.tests("PASS_TO_PASS") if test not in set(fail_to_pass))


def said_language(raw: Raw, files: tuple[FileDiff, ...]) -> str | None:
    """The row's own word, or what its diff shows."""
    said = raw.optional("language")
    return language_named(said) if said else language_of(file.path for file in files)
