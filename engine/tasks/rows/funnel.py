"""What became of every row, for a person and for `NAME.report.json`: read, chosen, and what can be run here.

Invariant: each chosen row is either written as a task directory or stands under the first reason why it is not.
"""

from dataclasses import dataclass, field
from typing import Any

from engine.core.errors import PatchError
from engine.core.unified import parse
from engine.tasks.rows.reading import Account
from engine.tasks.rows.record import TaskRow

_NAMED = 3
"""Rows that are named for each reason."""


@dataclass(kw_only=True)
class Outcome:
    """What can be run of the chosen rows."""

    written: list[str] = field(default_factory=list)
    """Ids of tasks that stand as directories."""
    reasons: dict[str, list[str]] = field(default_factory=dict)
    """Reason → ids that cannot be run here."""
    details: dict[str, str] = field(default_factory=dict)
    """Id → the reason in its own words."""

    def refused(self, row: TaskRow, reason: str, detail: str = "") -> None:
        """Count a row that cannot be run here."""
        self.reasons.setdefault(reason, []).append(row.id)
        self.details[row.id] = detail or reason


def obstacle(row: TaskRow) -> tuple[str, str] | None:
    """(reason, this row's own words): why no task directory can be made of a row, as far as the row itself tells."""
    if row.format == "harbor":
        return "it is a task directory already", f"run it with tasks=harbor, from {row.repository}"
    if row.language not in (None, "python"):
        return f"it is written in {row.language}; the verifier runs pytest", ""
    if not row.fail_to_pass:
        detail = f"{len(row.expected)} outcomes are told; base and tests are in the image {row.image} alone"
        return "base and tests are in its container image alone, and images of registries are not pulled", detail
    other = next((test for test in (*row.fail_to_pass, *row.pass_to_pass) if not _of_pytest(test)), None)
    if other is not None:
        return "its tests are not named as pytest names them", f"{other!r} is not PATH::NAME"
    try:
        files = [file for text in (row.setup_patch, row.reference, row.test_patch) if text for file in parse(text)]
    except PatchError as error:
        return "a diff of it cannot be read", str(error)
    odd = next((file.path for file in files if not file.plain), None)
    return None if odd is None else ("a diff of it holds a binary file or a link", odd)


def _of_pytest(test: str) -> bool:
    path, separator, name = test.partition("::")
    return bool(separator and name) and path.endswith(".py")


def report(account: Account, outcome: Outcome) -> dict[str, Any]:
    """The whole account, plain."""
    return {
        "files": account.files,
        "formats": account.formats,
        "read": account.read,
        "passed_over": account.passed_over,
        "copies": account.copies,
        "bad": [str(error) for error in account.bad],
        "chosen": account.chosen,
        "stopped_at_limit": account.limited,
        "task_directories": outcome.written,
        "not_run_here": outcome.details,
    }


def funnel_lines(account: Account, outcome: Outcome) -> list[str]:
    """A short table."""
    kinds = f"{account.files} {'folder' if account.formats == ['harbor'] else 'file'}{'s' * (account.files != 1)}"
    limit = " (limit ended it)" if account.limited else ""
    lines = [
        f"{account.read:>7}  rows read from {kinds}: {', '.join(account.formats)}{limit}",
        f"{account.passed_over:>7}  passed over by split, ids or repositories",
        f"{len(account.copies):>7}  copies of an earlier row",
        f"{len(account.bad):>7}  bad",
        f"{account.chosen:>7}  tasks chosen",
        f"{len(outcome.written):>7}  of them made task directories",
    ]
    for reason, ids in sorted(outcome.reasons.items(), key=lambda entry: -len(entry[1])):
        more = ", …" if len(ids) > _NAMED else ""
        lines.append(f"{len(ids):>7}  not: {reason} ({', '.join(ids[:_NAMED])}{more})")
    return lines
