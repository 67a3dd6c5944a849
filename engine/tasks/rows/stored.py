"""The project's own form of a task row: plain values of `schemas/records/task.json`.

Invariant: `read_stored(Raw(to_plain(row), …)) == row`. Refuses a row that lacks a column or whose values are of another
type, so that a table of an older layout is never half understood.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from engine.core.errors import ConfigError
from engine.tasks.rows.record import Format, TaskRow
from engine.tasks.rows.values import Raw

COLUMNS = tuple(field.name for field in fields(TaskRow))
_LISTS = ("fail_to_pass", "pass_to_pass", "install", "test_command")
_NULLABLE = frozenset(field.name for field in fields(TaskRow) if "None" in str(field.type))


def to_plain(row: TaskRow) -> dict[str, Any]:
    """One row of the table."""
    values = {name: getattr(row, name) for name in COLUMNS}
    return values | {name: list(values[name]) for name in _LISTS} | {"expected": list(row.expected.items())}


def read_stored(raw: Raw) -> TaskRow:
    """The record of a stored row. Raises ConfigError."""
    raw.named(raw.text("id"))
    values = {name: _value(raw, name) for name in COLUMNS}
    if values["format"] not in get_args(Format):
        raise raw.wrong("format", values["format"], "is no known format", f"known: {', '.join(get_args(Format))}")
    for column in ("setup_patch", "reference", "test_patch"):
        if values[column]:
            raw.diff(column, values[column])
    return TaskRow(**values)


def _value(raw: Raw, name: str) -> Any:
    value = raw.value(name)
    if name == "expected":
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list) or not all(isinstance(text, str) for pair in pairs for text in pair):
            raise _foreign(raw, name, value)
        return {raw.utf8(name, test): raw.utf8(name, outcome) for test, outcome in pairs}
    if name in _LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _foreign(raw, name, value)
        return tuple(raw.utf8(name, item) for item in value)
    if not isinstance(value, str) and not (value is None and name in _NULLABLE):
        raise _foreign(raw, name, value)
    return None if value is None else raw.utf8(name, value)


def _foreign(raw: Raw, name: str, value: Any) -> ConfigError:
    return raw.wrong(name, value, "is not what job=convert writes", "convert the set again")
