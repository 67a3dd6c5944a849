"""Injects one bug into one line of Python source.

Invariant: a mutant differs from its source in exactly one line, compiles, means something else, and `Mutant.revert`
gives the source back byte for byte. Same source, same mutants, in the same order. Positions come from the syntax tree
and text is replaced within one physical line, so comments and layout stay.

Leaves alone: code outside functions, documentation strings, decorators, annotations, f-strings (Python 3.11 gives no
positions within them) and whatever spans lines.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">")),
    ast.LtE: (r"<=", ("<", ">=")),
    ast.Gt: (r">", (">=", "<")),
    ast.GtE: (r">=", (">", "<=")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: (r"\+", ("-",)),
    ast.Sub: (r"-", ("+",)),
    ast.Mult: (r"\*", ("+",)),
    ast.Div: (r"/", ("*",)),
    ast.FloorDiv: (r"//", ("*",)),
    ast.Mod: (r"%", ("//",)),
    ast.BitAnd: (r"&", ("|",)),
    ast.BitOr: (r"\|", ("&",)),
}
_PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("startswith", "endswith"),
    ("lstrip", "rstrip"),
    ("find", "rfind"),
    ("split", "rsplit"),
    ("partition", "rpartition"),
    ("lower", "upper"),
    ("append", "extend"),
    ("add", "discard"),
    ("keys", "values"),
    ("floor", "ceil"),
)
_CALLS = {name: other for pair in _PAIRS for name, other in (pair, pair[::-1])}
_PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Call)
_Function = ast.FunctionDef | ast.AsyncFunctionDef

FAMILIES = (
    "arguments",
    "arithmetic",
    "boolean",
    "call",
    "comparison",
    "conditional",
    "constant",
    "index",
    "negation",
    "return",
    "statement",
)
"""What a mutant's `family` may be."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed line."""

    family: str
    """One of `FAMILIES`."""
    function: str
    """Qualified name within the module: `Class.method`."""
    line: int
    """Number of the line, from 1."""
    before: str
    """The line as it was, without its end."""
    after: str
    """The line with the bug."""

    def apply(self, source: str) -> str:
        """The source with the bug. Raises ValueError when the line is not `before`."""
        return _replace(source, self.line, self.before, self.after)

    def revert(self, source: str) -> str:
        """The source without it. Raises ValueError when the line is not `after`."""
        return _replace(source, self.line, self.after, self.before)


def mutants(source: str) -> tuple[Mutant, ...]:
    """Every mutant of a module, by line and text; no two are alike. Raises SyntaxError when it does not parse."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    check = _Check(source)
    found: dict[tuple[int, str], Mutant] = {}
    for mutant, within in finder.found:
        if (mutant.line, mutant.after) not in found and check.differs(mutant, within):
            found[mutant.line, mutant.after] = mutant
    return tuple(found[key] for key in sorted(found))


class _Check:
    """Whether a mutant compiles and means something else, by the outermost function around it alone."""

    def __init__(self, source: str) -> None:
        self._lines = _lines(source)
        self._meanings: dict[range, str] = {}

    def differs(self, mutant: Mutant, within: range) -> bool:
        """`within`: indices of the function's lines."""
        if within not in self._meanings:
            self._meanings[within] = ast.dump(ast.parse(self._text(within)))
        try:
            text = self._text(within, mutant.line - 1, mutant.after)
            compile(text, "<mutant>", "exec", dont_inherit=True)
            return ast.dump(ast.parse(text)) != self._meanings[within]
        except SyntaxError:
            return False

    def _text(self, within: range, index: int = -1, line: str = "") -> str:
        lines = [line + "\n" if number == index else self._lines[number] for number in within]
        return "".join(["if True:\n" if lines[0][:1].isspace() else "", *lines])


def _lines(source: str) -> list[str]:
    """Lines with their ends, split as Python's tokenizer does (not at form feeds and the like)."""
    return re.split(r"(?<=\n)", source)


def _replace(source: str, number: int, old: str, new: str) -> str:
    lines = _lines(source)
    held = lines[number - 1] if number <= len(lines) else ""
    text = held.rstrip("\r\n")
    if text != old:
        raise ValueError(f"line {number} is {text!r}, not {old!r}")
    lines[number - 1] = new + held[len(text) :]
    return "".join(lines)


class _Finder(ast.NodeVisitor):
    """Walks the tree and notes one replacement of text after the other."""

    def __init__(self, source: str) -> None:
        self.found: list[tuple[Mutant, range]] = []
        """Each mutant with the indices of the lines of the outermost function around it."""
        self._lines = [line.rstrip("\r\n").encode() for line in _lines(source)]
        self._names: list[str] = []
        self._within = range(0)

    # -------------------------------------------------------------- where

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for child in node.body:
            self.visit(child)
        self._names.pop()

    def visit_FunctionDef(self, node: _Function) -> None:
        outermost = not self._within
        if outermost:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            self._within = range(first - 1, node.end_lineno or node.lineno)
        self._names.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for child in node.body:
            self.visit(child)
        self._names.pop()
        if outermost:
            self._within = range(0)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """No positions within: left alone."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    # -------------------------------------------------------------- what

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            pattern, others = _COMPARISONS[type(operator)]
            self._between("comparison", left, right, pattern, others)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        pattern, other = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("boolean", left, right, pattern, (other,))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not _is_text(node.left) and not _is_text(node.right):
            pattern, others = _ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.left, node.right, pattern, others)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC and not _is_text(node.value):
            pattern, others = _ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.target, node.value, pattern + "(?==)", others)
        self._put("statement", node, "pass")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._put("negation", node, self._text(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._put("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            for other in (node.value + 1, node.value - 1):
                if other >= 0:
                    self._put("constant", node, str(other))

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.visit_If(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        body, test, other = self._text(node.body), self._text(node.test), self._text(node.orelse)
        if body and test and other:
            self._put("conditional", node, f"{other} if {test} else {body}")
            self._put("conditional", node, body)
        self.visit_If(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not _is_none(node.value):
            self._put("return", node.value, "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            self._put("statement", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._put("statement", node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._put("statement", node, "continue")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CALLS and node.func.end_col_offset is not None:
            end = node.func.end_col_offset
            self._span("call", node.func.end_lineno, end - len(name.encode()), end, _CALLS[name])
        if len(node.args) >= 2:
            first, second = node.args[:2]
            if isinstance(first, _PLAIN) and isinstance(second, _PLAIN):
                self._swap(first, second)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        place = node.slice
        if isinstance(place, ast.Slice):
            for bound in (place.lower, place.upper):
                if bound is not None:
                    self._bound(bound)
        elif _number(place) is not None:
            self._bound(place)
        else:
            self.visit(place)

    # -------------------------------------------------------------- how

    def _bound(self, bound: ast.expr) -> None:
        number = _number(bound)
        if number is None:
            if isinstance(bound, ast.Name | ast.Attribute | ast.Call):
                for change in ("+ 1", "- 1"):
                    self._put("index", bound, f"{self._text(bound)} {change}")
            else:
                self.visit(bound)
            return
        for other in (number + 1, number - 1):
            self._put("index", bound, str(other))

    def _negate(self, test: ast.expr) -> None:
        text = self._text(test)
        if not text or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            return
        plain = isinstance(test, _PLAIN)
        self._put("negation", test, f"not {text}" if plain else f"not ({text})")

    def _swap(self, first: ast.expr, second: ast.expr) -> None:
        one, two = self._text(first), self._text(second)
        if one and two and one != two and first.end_lineno == second.lineno:
            begin, end = first.col_offset, second.end_col_offset
            middle = self._lines[first.lineno - 1][first.end_col_offset : second.col_offset].decode()
            self._span("arguments", first.lineno, begin, end, two + middle + one)

    def _text(self, node: ast.expr) -> str:
        """The node's text; empty when it spans lines."""
        if node.lineno != node.end_lineno:
            return ""
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def _between(self, family: str, left: ast.expr, right: ast.expr, pattern: str, others: Sequence[str]) -> None:
        """Replace the operator between two operands of one line."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        gap = self._lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        match = re.search(pattern, gap)
        if match:
            start = left.end_col_offset + len(gap[: match.start()].encode())
            for other in others:
                self._span(family, right.lineno, start, start + len(match[0].encode()), other)

    def _put(self, family: str, node: ast.expr | ast.stmt, text: str) -> None:
        """Replace a whole node of one line."""
        if text and node.lineno == node.end_lineno:
            self._span(family, node.lineno, node.col_offset, node.end_col_offset, text)

    def _span(self, family: str, number: int | None, start: int, end: int | None, text: str) -> None:
        if not self._within or number is None or end is None:
            return
        line = self._lines[number - 1]
        after = line[:start] + text.encode() + line[end:]
        if after != line:
            function = ".".join(self._names)
            self.found.append(
                (
                    Mutant(family=family, function=function, line=number, before=line.decode(), after=after.decode()),
                    self._within,
                )
            )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _number(node: ast.expr) -> int | None:
    """The value of an integer literal, signed or not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def by_line(found: Sequence[Mutant]) -> Iterator[tuple[Mutant, ...]]:
    """Mutants of the same line together, in order."""
    lines: dict[int, list[Mutant]] = {}
    for mutant in found:
        lines.setdefault(mutant.line, []).append(mutant)
    yield from (tuple(lines[line]) for line in sorted(lines))
