"""What a task says about its judgement: `tests/grading.json` of a task directory.

Invariant: every test id lies in a file below a test path, no id is named twice, and at least one must turn from failing
to passing. Refuses unknown and missing keys, naming file and key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.errors import ConfigError, PatchError
from engine.core.patch import safe_path, under

_KEYS = ("test_paths", "python_path", "fail_to_pass", "pass_to_pass")


@dataclass(frozen=True, kw_only=True)
class Grading:
    """Which tests judge a task, and how they find the code."""

    test_paths: tuple[str, ...]
    """Repository-relative paths that belong to the grader."""
    python_path: tuple[str, ...]
    """Repository-relative folders that go on sys.path."""
    fail_to_pass: tuple[str, ...]
    """pytest node ids that fail on the base and must pass."""
    pass_to_pass: tuple[str, ...]
    """pytest node ids that pass on the base and must still pass."""

    def text(self) -> str:
        """The JSON text of `grading.json`."""
        return json.dumps({key: list(getattr(self, key)) for key in _KEYS}, indent=1, ensure_ascii=False) + "\n"


def read_grading(file: Path, withheld: Path) -> Grading:
    """Read and check `grading.json` against the folder of withheld test files. Raises ConfigError."""
    values = _load(file)
    grading = Grading(**{key: _strings(file, key, values[key]) for key in _KEYS})
    for key in ("test_paths", "python_path"):
        for path in getattr(grading, key):
            if key == "python_path" and path == ".":
                continue
            try:
                safe_path(path)
            except PatchError as error:
                raise ConfigError(f"{file}: {key}", path, str(error), "name a path inside the repository") from error
    _check_ids(file, grading, withheld)
    return grading


def _load(file: Path) -> Mapping[str, Any]:
    way_out = "see docs/guides/tasks.md for the layout"
    try:
        values = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(str(file), None, "the file is missing, so nothing says which tests judge", way_out) from error
    except ValueError as error:
        raise ConfigError(str(file), None, f"is not JSON: {error}", way_out) from error
    if not isinstance(values, dict):
        raise ConfigError(str(file), values, "is not a JSON object", way_out)
    for key in _KEYS:
        if key not in values:
            raise ConfigError(f"{file}: {key}", None, "is missing", way_out)
    for key in values:
        if key not in _KEYS:
            raise ConfigError(f"{file}: {key}", values[key], "is not a known key", f"known: {', '.join(_KEYS)}")
    return values


def _strings(file: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{file}: {key}", value, "is not a list of texts", "give a JSON list of non-empty texts")
    if len(set(value)) != len(value):
        double = next(item for item in value if value.count(item) > 1)
        raise ConfigError(f"{file}: {key}", double, "is named twice", "name it once")
    if not value and key != "pass_to_pass":
        raise ConfigError(f"{file}: {key}", value, "is empty", "name at least one")
    return tuple(value)


def _check_ids(file: Path, grading: Grading, withheld: Path) -> None:
    both = set(grading.fail_to_pass) & set(grading.pass_to_pass)
    if both:
        raise ConfigError(f"{file}: pass_to_pass", min(both), "is in fail_to_pass too", "name it in one of them")
    for key in ("fail_to_pass", "pass_to_pass"):
        for test in getattr(grading, key):
            module = test.split("::", 1)[0]
            if "::" not in test or not under(module, grading.test_paths):
                raise ConfigError(
                    f"{file}: {key}", test, "is no test id below test_paths", "write PATH::NAME, PATH below a test path"
                )
            if not (withheld / module).is_file():
                raise ConfigError(f"{file}: {key}", test, f"{withheld / module} is missing", "add the test file")
