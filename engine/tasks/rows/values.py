"""One raw row, read column by column: whatever a writer made of a text, a list or a time, one meaning, or an error.

Sets store lists as lists, as JSON text and as Python's `repr`; parquet gives None, pandas NaN and numpy arrays, JSON
numbers where a text was meant. Invariant: each error names file, row, id, column and value, and a way out.
"""

import ast
import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.core.errors import ConfigError, PatchError
from engine.core.unified import FileDiff, parse

_SHOWN = 80
"""Characters of a value that an error shows."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SMALLER = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""(number, parts of a second): beyond such a number seconds would lie in the year 5138, so it counts smaller parts."""


class Raw:
    """A row as it came, and where it came from."""

    def __init__(self, values: Mapping[str, Any], file: str, number: int, prefix: str = "", identity: str = "") -> None:
        """`number`: of the row in its file, from 1 (in JSON lines: of the line); `prefix`: of the columns' names."""
        self._values = values
        self._file = file
        self._number = number
        self._prefix = prefix
        self._id = identity

    def named(self, identity: str) -> str:
        """The same id, checked; later errors name it. It becomes the name of files and folders."""
        if not _ID.fullmatch(identity):
            raise self.wrong("id", identity, "is no task name", "use letters, digits, dot, dash, underscore")
        self._id = identity
        return identity

    def wrong(self, column: str, value: Any, problem: str, way_out: str) -> ConfigError:
        """The error for a column of this row."""
        shown = value
        if value is not None and len(text := str(value)) > _SHOWN:
            shown = text[:_SHOWN] + "…"
        name = f" ({self._id})" if self._id else ""
        key = f"{self._file}, row {self._number}{name}: {self._prefix}{column}"
        return ConfigError(key, shown, problem, way_out)

    def has(self, column: str) -> bool:
        """Whether the column is there and not empty."""
        return self.value(column) not in (None, "", [], {})

    def inner(self, column: str) -> "Raw":
        """The object of a column, as a row of its own."""
        return Raw(self.mapping(column), self._file, self._number, f"{self._prefix}{column}.", self._id)

    def value(self, column: str) -> Any:
        """The plain value; None where it is missing, null or NaN."""
        value = self._values.get(column)
        if value is not None and hasattr(value, "tolist"):  # numpy, without importing it
            value = value.tolist()
        return None if isinstance(value, float) and math.isnan(value) else value

    def text(self, column: str) -> str:
        """A text that must be there and say something."""
        value = self.optional(column)
        if value is None:
            state = "is missing" if column not in self._values else "is empty"
            raise self.wrong(column, self.value(column), state, "add it, or leave the row out (bad_rows=leave_out)")
        return value

    def optional(self, column: str) -> str | None:
        """A text, or None where it is missing or blank; a number counts as its text."""
        value = self.value(column)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if not isinstance(value, str):
            raise self.wrong(column, value, f"is no text but a {type(value).__name__}", "give a text")
        return self.utf8(column, value)

    def utf8(self, column: str, text: str) -> str:
        """The same text, if it can be stored: JSON may hold half of a character."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"holds half a character (at {error.start})"
            raise self.wrong(column, text, problem, "remove it, or leave the row out") from error
        return text

    def texts(self, column: str) -> tuple[str, ...]:
        """A list of texts, in whatever form; one text that is no list is a list of one."""
        value = self.value(column)
        if isinstance(value, str):
            listed = self._list(value) if value.strip() else []
            value = [value] if listed is None else listed
        return self._all_texts(column, value)

    def tests(self, column: str) -> tuple[str, ...]:
        """Test ids, each once, in their order. The column must be there; the list may be empty."""
        value = self.value(column)
        if isinstance(value, str):
            told, value = value, (self._list(value) if value.strip() else [])
            if value is None:
                raise self.wrong(column, told, "is no list", 'write a JSON list: ["tests/test_a.py::test_b"]')
        elif column not in self._values:
            raise self.wrong(column, None, "is missing", "add the list of test ids, or leave the row out")
        return tuple(dict.fromkeys(self._all_texts(column, value)))

    def mapping(self, column: str) -> Mapping[str, Any]:
        """An object, or its JSON text; empty where it is missing."""
        value = self.value(column)
        if isinstance(value, str):
            value = _parsed(value) if value.strip() else None
        if value is None and not self.has(column):
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(column, self.value(column), "is no object", 'write a JSON object: {"name": "value"}')
        return value

    def time(self, column: str) -> str | None:
        """A time as ISO text, as a `datetime`, or in seconds or milliseconds since 1970 → `2022-03-03T15:14:54Z`."""
        value = self.value(column)
        if value in (None, ""):
            return None
        if isinstance(value, str) and re.fullmatch(r"\d{9,19}", value.strip()):
            value = int(value)
        try:
            if isinstance(value, str):
                value = datetime.fromisoformat(value.strip())
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                value = datetime.fromtimestamp(value / next((p for beyond, p in _SMALLER if value > beyond), 1), UTC)
            moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
            return str(moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
        except (ValueError, OverflowError, OSError, AttributeError) as error:
            raise self.wrong(column, value, "is no time", "write 2022-03-03T15:14:54Z, or leave it empty") from error

    def diff(self, column: str, text: str) -> tuple[FileDiff, ...]:
        """The files of a diff that this column gave."""
        try:
            return parse(text)
        except PatchError as error:
            way_out = "mend the diff, or leave the row out (bad_rows=leave_out)"
            raise self.wrong(column, text, f"is no diff that can be read: {error}", way_out) from error

    @staticmethod
    def _list(text: str) -> list[Any] | None:
        value = _parsed(text)
        return list(value) if isinstance(value, (list, tuple)) else None

    def _all_texts(self, column: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(column, value, "is no list", 'write a list of texts: ["…"]')
        for item in value:
            if not isinstance(item, str) or not item:
                raise self.wrong(column, value, f"holds {item!r}, which is no text", "give non-empty texts alone")
        return tuple(self.utf8(column, item) for item in value)


def _parsed(text: str) -> Any:
    """JSON, or else what Python's `repr` writes; None where it is neither."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    if not text.strip().startswith(("[", "(", "{")):
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def canonical(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys, without what is null: parquet has a key for each that any row has, JSON lines have not.
    Empty for an empty object."""
    plain = _without_nulls(value)
    return json.dumps(plain, sort_keys=True, default=str) if plain else ""


def _without_nulls(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        kept = {str(key): _without_nulls(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner is not None and inner != {}}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(inner) for inner in value]
    return value


_SUFFIXES = {
    "python": "py pyx pyi",
    "go": "go",
    "rust": "rs",
    "java": "java",
    "kotlin": "kt kts",
    "javascript": "js jsx mjs cjs",
    "typescript": "ts tsx",
    "c": "c h",
    "cpp": "cpp cc cxx hpp hh",
    "csharp": "cs",
    "ruby": "rb",
    "php": "php",
    "scala": "scala",
    "swift": "swift",
    "dart": "dart",
    "elixir": "ex exs",
    "haskell": "hs",
    "ocaml": "ml mli",
    "julia": "jl",
    "lua": "lua",
    "r": "r R",
}
_OTHER_NAMES = {"py": "python", "golang": "go", "js": "javascript", "ts": "typescript", "c++": "cpp", "c#": "csharp"}
_LANGUAGES = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}


def language_named(word: str) -> str:
    """A set's own word for a language, as it is kept here."""
    small = word.strip().lower()
    return _OTHER_NAMES.get(small, small)


def language_of(paths: Iterable[str]) -> str | None:
    """The language of most files; the first of several that have as many."""
    known = [_LANGUAGES[suffix] for path in paths if (suffix := path.rpartition(".")[2]) in _LANGUAGES]
    return max(dict.fromkeys(known), key=known.count, default=None)
