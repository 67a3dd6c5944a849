"""Copies of the target tests that must fail: in each, one assertion compares with a value that the code cannot give.

A result that claims to equal everything passes the target's own assertions, and such a copy as well: so it is found
out. Invariant: where a target honestly passes, no copy of it does. So an assertion is changed only if a test that
passes has come to it: a statement of the function's own body, where nothing returns before and no decorator has a say.
A copy that is missing says nothing, since its module may refuse to be imported twice.
"""

import ast
import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.verify.canaries import CanaryFile, Outcome, word

_HARMLESS = ("pytest.mark.parametrize", "pytest.mark.usefixtures", "staticmethod", "patch", "mock.patch")
"""What decorators may begin with; any other may run a test twice, or take its failure for a success."""


@dataclass(frozen=True)
class _Place:
    """An assertion that can be changed."""

    names: tuple[str, ...]
    """Of its classes and its function."""
    statement: int
    """Number in the function's body."""
    parameters: str
    """`[…]` of a node id that has these names."""


def make_clones(tests: Path, targets: Sequence[str], count: int, source: random.Random) -> CanaryFile | None:
    """Up to `count` copies of target tests, all of one file of the withheld `tests`; None where none can be made."""
    by_file: defaultdict[str, defaultdict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for target in targets:
        named, bracket, parameters = target.partition("[")
        path, *names = named.split("::")
        by_file[path][tuple(names)].append(bracket + parameters)
    paths = list(by_file)
    source.shuffle(paths)
    for path in paths:
        module = _parse(tests / path)
        places = list(_places(module, by_file[path], source))
        if places:
            return _make(path, module, source.sample(places, min(count, len(places))), source)
    return None


def _make(path: str, module: ast.Module, places: Sequence[_Place], source: random.Random) -> CanaryFile:
    folder = PurePosixPath(path).parent
    name = str(folder / f"test_{word(source)}.py")
    expected: dict[str, Outcome] = {}
    for place in places:
        found = _find(module, place.names)
        assert found is not None
        body, function = found
        clone = copy.deepcopy(function)
        clone.name = f"test_{word(source)}"
        changed = _changed(clone.body[place.statement], source)
        assert changed is not None
        body.append(clone)
        expected["::".join((name, *place.names[:-1], clone.name)) + place.parameters] = "failed"
    text = ast.unparse(ast.fix_missing_locations(module)) + "\n"
    return CanaryFile(path=name, source=text, expected=expected, copied=True)


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _places(
    module: ast.Module, wanted: Mapping[tuple[str, ...], Sequence[str]], source: random.Random
) -> Iterator[_Place]:
    for names, parameters in wanted.items():
        found = _find(module, names)
        if found is None or not _ends_at_its_end(found[1]):
            continue
        for number, statement in enumerate(found[1].body):
            if _changed(copy.deepcopy(statement), source) is not None:
                yield _Place(names, number, source.choice(parameters))


def _find(module: ast.Module, names: Sequence[str]) -> tuple[list[ast.stmt], ast.FunctionDef] | None:
    """The body that holds a function, and the function; None if it stands elsewhere or is no plain one."""
    body = module.body
    for name in names[:-1]:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes:
            return None
        body = classes[-1].body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == names[-1]]
    return (body, functions[-1]) if functions else None


def _ends_at_its_end(function: ast.FunctionDef) -> bool:
    """Whether a call that raises nothing has run every statement of the body."""
    if any(not ast.unparse(decorator).startswith(_HARMLESS) for decorator in function.decorator_list):
        return False
    return not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in _own(function))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, less those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


# ---------------------------------------------------------------- assertions


def _changed(statement: ast.stmt, source: random.Random) -> ast.stmt | None:
    """The statement, changed in place, if it says that two things are equal; else None."""
    if any("ANY" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(statement)):
        return None  # equals all there is by itself
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as comparison):
            if _is_plain(left):
                comparison.left = _other(left, source)
            else:
                comparison.comparators = [_other(right, source)]
            return statement
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id="self"), attr="assertEqual"), args=[left, right, *_]
            ) as call
        ):
            number = 0 if _is_plain(left) else 1
            call.args[number] = _other((left, right)[number], source)
            return statement
    return None


def _is_plain(node: ast.expr) -> bool:
    """Whether it is written out: the expected side of an assertion."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


def _other(expected: ast.expr, source: random.Random) -> ast.expr:
    """What is not equal to the expected value: of its type, where that is int or str, so that it looks real. A number
    is far off, so that no rounding or tolerance makes it the same."""
    value = ast.literal_eval(expected) if _is_plain(expected) else None
    if type(value) is int:
        return ast.Constant(value + (abs(value) + 1) * source.randrange(2, 1000))
    if type(value) is str:
        return ast.Constant(value + word(source))
    return ast.Call(func=ast.Name(id="object", ctx=ast.Load()), args=[], keywords=[])
