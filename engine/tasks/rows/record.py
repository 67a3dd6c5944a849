"""What a row of any public task set says, in one form.

It is no `core.records.Task`: that one is a folder with files, a row only names a repository and a commit. Invariant:
`reference` solves the task and `setup_patch` makes its base, whatever a format calls its columns; both, and
`test_patch`, are diffs that `core.unified.parse` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["swe_bench", "swe_gym", "swe_smith", "swe_rebench", "r2e_gym", "harbor"]


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task of a public set."""

    format: Format
    """What it was read from."""
    id: str
    """Unique in its set; letters, digits, dot, dash, underscore."""
    instruction: str
    """The issue text."""
    hints: str
    """What was said of the issue before its fix began; never shown to an agent unless one chooses to. Often empty."""
    repository: str
    """`owner/name` as the set writes it (R2E-Gym: the name alone; Harbor: the folder of the tree)."""
    base_commit: str | None
    """Commit of the repository, or an expression that git resolves (`HASH^`); None: only the image or folder has it."""
    setup_patch: str
    """Diff that turns the commit into what the agent receives (SWE-smith: it makes the bug); empty: it is that."""
    reference: str | None
    """Diff that solves the task; None where the row has none."""
    test_patch: str
    """Diff that brings the tests that judge; empty where the base or the image has them."""
    fail_to_pass: tuple[str, ...]
    """Ids of tests that must turn from failing to passing; empty where only `expected` says what must come out."""
    pass_to_pass: tuple[str, ...]
    """Ids of tests that must still pass."""
    expected: Mapping[str, str]
    """R2E-Gym: test name → outcome (`PASSED`, `FAILED`, …) with the right code. Empty elsewhere."""
    image: str | None
    """Container image that holds the environment: the row's, or for SWE-bench and SWE-Gym by its publisher's rule."""
    workdir: str
    """Absolute path of the repository in that image."""
    recipe: str
    """What else the row says of how its environment is made, as JSON with sorted keys; empty: nothing."""
    install: tuple[str, ...]
    """Shell commands of the recipe that install the repository, in order."""
    test_command: tuple[str, ...]
    """Shell commands that run the tests, in order."""
    log_parser: str | None
    """Name of the set's own reader of test logs."""
    environment_setup_commit: str | None
    """Commit by which the set made the environment."""
    version: str | None
    """Version of the repository that the set keeps environments by."""
    created_at: str | None
    """UTC, `2022-03-03T15:14:54Z`."""
    language: str | None
    """`python`, `go`, …: the row's word, else that of the files that its diffs touch; None: unknown."""
    license: str | None
    """The row's word for the repository's licence."""
    split: str | None
    """Split of the set, from the row or its file's name (`test-00000-of-00001.parquet`)."""
