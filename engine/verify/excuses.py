"""Which tests may be skipped or expected to fail: those whose own source says so.

pytest's `skip` and `xfail` can be raised by the code under test as well, and both look like the test's own wish. Read
from the withheld files on the host, so nothing that runs in a sandbox has a say.

Invariant: a test is excused only where its own function, or code outside of tests that has a say in it, names skipping
or expected failure: its classes, marks of its module, hooks and fixtures that nobody asks for by name, and whatever of
its file and of each `conftest.py` above it these name (helpers, parameters, fixtures, marks kept in a variable). A mark
that stands there for other tests excuses none. A test inherited from another withheld file is looked up in all of them.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from engine.core.records import Outcome

_WORDS: dict[Outcome, tuple[str, ...]] = {
    "skipped": ("skip", "Skip"),
    "xfailed": ("xfail", "expectedFailure"),
    "xpassed": ("xfail", "expectedFailure"),
}


_WORD = re.compile(r"[^\W\d]\w*")
_UNASKED = re.compile(r"\bautouse\b|\bdef (pytest_|setup|teardown)|^pytestmark\b", re.MULTILINE)
"""Has a say in every test of its file, or below its folder."""


@dataclass(frozen=True)
class _Piece:
    """A statement of a module's own, less the test functions in it."""

    names: frozenset[str]
    """What it defines; empty: it has a say in every test."""
    text: str


class Excuses:
    """The excuses that a folder of withheld tests grants."""

    def __init__(self, tests: Path) -> None:
        self._tests = tests
        self._read: dict[str, tuple[tuple[_Piece, ...], dict[str, str]]] = {}

    def grants(self, test: str, outcome: Outcome) -> bool:
        """Whether this outcome of this node id is one that its source provides for; others need no excuse."""
        words = _WORDS.get(outcome)
        if words is None:
            return True
        path, *names = test.split("[", 1)[0].split("::")
        pieces, functions = self._source(path)
        own = functions.get(names[-1])
        if own is None:
            return any(word in self._everything for word in words)
        pieces += tuple(piece for conftest in self._conftests(path) for piece in self._source(conftest)[0])
        return any(word in text for text in _said(own, names[:-1], pieces) for word in words)

    def _source(self, path: str) -> tuple[tuple[_Piece, ...], dict[str, str]]:
        """(what stands outside of test functions, text of each test function by name) of a file; empty for none."""
        if path not in self._read:
            file = self._tests / path
            self._read[path] = _split(file.read_bytes()) if file.is_file() else ((), {})
        return self._read[path]

    def _conftests(self, path: str) -> list[str]:
        return [str(parent / "conftest.py") for parent in PurePosixPath(path).parents]

    @cached_property
    def _everything(self) -> str:
        return "".join(file.read_bytes().decode(errors="replace") for file in sorted(self._tests.rglob("*.py")))


def _said(own: str, classes: Sequence[str], pieces: Sequence[_Piece]) -> list[str]:
    """A test's own text, and the texts of all that has a say in it."""
    said, left = [own, *classes], list(pieces)
    known: set[str] = set()
    while True:
        known.update(word for text in said for word in _WORD.findall(text))
        more = [piece for piece in left if not piece.names or piece.names & known]
        if not more:
            return said
        left = [piece for piece in left if piece not in more]
        said += [piece.text for piece in more]


def _split(source: bytes) -> tuple[tuple[_Piece, ...], dict[str, str]]:
    """What a file holds outside of its test functions, and each test function's own text, decorators included."""
    lines = source.decode(errors="replace").splitlines(keepends=True)
    module = ast.parse(source)
    taken: set[int] = set()
    functions: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            functions[node.name] = functions.get(node.name, "") + "".join(lines[number] for number in _lines(node))
            taken.update(_lines(node))
    pieces = [(node, "".join(lines[number] for number in _lines(node) if number not in taken)) for node in module.body]
    return tuple(_Piece(_defined(node, text), text) for node, text in pieces if text), functions


def _lines(node: ast.stmt) -> range:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return range(min([node.lineno, *(one.lineno for one in decorators)]) - 1, node.end_lineno or node.lineno)


def _defined(node: ast.stmt, text: str) -> frozenset[str]:
    """Names that a plain definition gives and that must be used; a fixture may be asked for by a name that it is given
    as a text. What has a class must be in it or below it, whatever stands there."""
    if not isinstance(node, ast.ClassDef) and _UNASKED.search(text):
        return frozenset()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            given = [
                one.value for part in node.decorator_list for one in ast.walk(part) if isinstance(one, ast.Constant)
            ]
            return frozenset([node.name, *(text for text in given if isinstance(text, str))])
        case ast.Import() | ast.ImportFrom():
            return frozenset((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        case ast.Assign(targets=targets) if all(isinstance(target, ast.Name) for target in targets):
            return frozenset(target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return frozenset([name])
    return frozenset()
