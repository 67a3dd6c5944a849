"""Which tests may be skipped or expected to fail: those whose own source says so.

pytest's `skip` and `xfail` can be raised by the code under test as well, and both look like the test's own wish. Read
from the withheld files on the host, so nothing that runs in a sandbox has a say.

Invariant: a test is excused only where its own function, or code of its file outside of other tests (marks of classes
and modules, helpers, parameters), names skipping or expected failure. A test inherited from another withheld file is
looked up in all of them.
"""

import ast
from functools import cached_property
from pathlib import Path, PurePosixPath

from engine.core.records import Outcome

_WORDS: dict[Outcome, tuple[str, ...]] = {
    "skipped": ("skip", "Skip"),
    "xfailed": ("xfail", "expectedFailure"),
    "xpassed": ("xfail", "expectedFailure"),
}


class Excuses:
    """The excuses that a folder of withheld tests grants."""

    def __init__(self, tests: Path) -> None:
        self._tests = tests
        self._read: dict[str, tuple[str, dict[str, str]]] = {}

    def grants(self, test: str, outcome: Outcome) -> bool:
        """Whether this outcome of this node id is one that its source provides for; others need no excuse."""
        words = _WORDS.get(outcome)
        if words is None:
            return True
        path, *names = test.split("[", 1)[0].split("::")
        shared, functions = self._source(path)
        own = functions.get(names[-1])
        text = shared + own if own is not None else self._everything
        text += "".join(self._source(conftest)[0] for conftest in self._conftests(path))
        return any(word in text for word in words)

    def _source(self, path: str) -> tuple[str, dict[str, str]]:
        """(text outside of test functions, text of each test function by name) of one file; empty if there is none."""
        if path not in self._read:
            file = self._tests / path
            self._read[path] = _split(file.read_bytes()) if file.is_file() else ("", {})
        return self._read[path]

    def _conftests(self, path: str) -> list[str]:
        return [str(parent / "conftest.py") for parent in PurePosixPath(path).parents]

    @cached_property
    def _everything(self) -> str:
        return "".join(file.read_bytes().decode(errors="replace") for file in sorted(self._tests.rglob("*.py")))


def _split(source: bytes) -> tuple[str, dict[str, str]]:
    """A file's text outside of its test functions, and each test function's own, decorators included."""
    lines = source.decode(errors="replace").splitlines(keepends=True)
    taken: set[int] = set()
    functions: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            numbers = range(first - 1, node.end_lineno or node.lineno)
            functions[node.name] = functions.get(node.name, "") + "".join(lines[number] for number in numbers)
            taken.update(numbers)
    return "".join(line for number, line in enumerate(lines) if number not in taken), functions
