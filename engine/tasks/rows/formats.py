"""Which reader a file's rows take: the one whose columns they have, or the one that the configuration names.

Invariant: the order below goes from what few sets have to what many have, so rows that fit two formats are read by the
narrower one. Nothing is taken for SWE-bench that has SWE-smith's columns: there `patch` means the opposite.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from engine.core.errors import ConfigError
from engine.tasks.rows.r2e_gym import head_r2e_gym, read_r2e_gym
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.stored import COLUMNS, read_stored
from engine.tasks.rows.swe_bench import read_swe_bench, read_swe_gym
from engine.tasks.rows.swe_rebench import read_swe_rebench
from engine.tasks.rows.swe_smith import mirrored, read_swe_smith
from engine.tasks.rows.values import Raw


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One format of rows."""

    name: str
    head: Callable[[Raw], tuple[str, str]]
    """(id, repository) of a row: enough to choose by."""
    read: Callable[[Raw], TaskRow]
    columns: tuple[str, ...]
    """Without these no row can be read."""
    without: tuple[str, ...] = ()
    """Rows that have one of these are of another format."""


def _head(raw: Raw) -> tuple[str, str]:
    return raw.text("instance_id"), raw.text("repo")


def _head_swe_smith(raw: Raw) -> tuple[str, str]:
    return raw.text("instance_id"), mirrored(raw)[0]


def _head_stored(raw: Raw) -> tuple[str, str]:
    return raw.text("id"), raw.optional("repository") or ""


_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_ISSUE = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement", *_TESTS)
READERS = (
    Reader(name="stored", head=_head_stored, read=read_stored, columns=COLUMNS),
    Reader(
        name="r2e_gym",
        head=head_r2e_gym,
        read=read_r2e_gym,
        columns=("repo_name", "commit_hash", "docker_image", "problem_statement", "expected_output_json"),
    ),
    Reader(name="swe_rebench", head=_head, read=read_swe_rebench, columns=(*_ISSUE, "install_config")),
    Reader(
        name="swe_smith",
        head=_head_swe_smith,
        read=read_swe_smith,
        columns=("instance_id", "repo", "patch", "problem_statement", "image_name", *_TESTS),
        without=("test_patch", "install_config"),
    ),
    Reader(name="swe_bench", head=_head, read=read_swe_bench, columns=(*_ISSUE, "environment_setup_commit")),
    Reader(name="swe_gym", head=_head, read=read_swe_gym, columns=_ISSUE),
)
NAMES = tuple(reader.name for reader in READERS)


def reader_of(file: str, columns: Collection[str], name: str | None, group: str) -> Reader:
    """The reader of a file with these columns. Raises ConfigError that says which column is missing."""
    if name is not None:
        chosen = next(reader for reader in READERS if reader.name == name)
        missing = [column for column in chosen.columns if column not in columns]
        if missing:
            problem = f"{file} has no column {', '.join(missing)} (it has {', '.join(sorted(columns))})"
            raise ConfigError(f"{group}.format", name, problem, "name another format, or null to have it recognised")
        return chosen
    for reader in READERS:
        if set(reader.columns) <= set(columns) and not set(reader.without) & set(columns):
            return reader
    lacking = {reader.name: [column for column in reader.columns if column not in columns] for reader in READERS}
    near = min(READERS, key=lambda reader: len(lacking[reader.name]) / len(reader.columns)).name
    problem = (
        f"{file} is of no known format (columns: {', '.join(sorted(columns)) or 'none'}); "
        f"for {near} it lacks {', '.join(lacking[near]) or 'nothing, but has columns of another'}"
    )
    raise ConfigError(f"{group}.format", None, problem, f"rename its columns, or name one of {', '.join(NAMES)}")
