"""Injected bugs: one line, valid, reversible, the same each time."""

import ast
import textwrap

import pytest

from engine.tasks.mutator import FAMILIES, Mutant, by_line, mutants


def bodies(line: str, *, before: str = "") -> dict[str, str]:
    """Bug → family, for a function whose body is one line."""
    source = textwrap.dedent(before) + f"def function(a, b, c=None):\n    {line}\n"
    return {mutant.after.strip(): mutant.family for mutant in mutants(source)}


@pytest.mark.parametrize(
    ("line", "bug", "family"),
    [
        ("return a < b", "return a <= b", "comparison"),
        ("return a is not b", "return a is b", "comparison"),
        ("return a not in b", "return a in b", "comparison"),
        ("return a and b", "return a or b", "boolean"),
        ("return a + b", "return a - b", "arithmetic"),
        ("return a // b", "return a * b", "arithmetic"),
        ("a += b", "a -= b", "arithmetic"),
        ("a += b", "pass", "statement"),
        ("a.clear()", "pass", "statement"),
        ("return f(a, b)", "return f(b, a)", "arguments"),
        ("return 3", "return 4", "constant"),
        ("return True", "return False", "constant"),
        ("return a[0]", "return a[1]", "index"),
        ("return a[-1]", "return a[-2]", "index"),
        ("return a[1:]", "return a[2:]", "index"),
        ("return a[:b]", "return a[:b - 1]", "index"),
        ("return not a", "return a", "negation"),
        ("if a == b: return c", "if not (a == b): return c", "negation"),
        ("while a: b()", "while not a: b()", "negation"),
        ("return a", "return None", "return"),
        ("return a if b else c", "return c if b else a", "conditional"),
        ("return a if b else c", "return a", "conditional"),
        ("return a.lstrip()", "return a.rstrip()", "call"),
        ("return min(a)", "return max(a)", "call"),
    ],
)
def test_each_family_makes_its_bug(line: str, bug: str, family: str) -> None:
    assert bodies(line).get(bug) == family


def test_loops_are_left_early_or_late() -> None:
    source = "def function(a):\n    for b in a:\n        continue\n"
    assert [mutant.after.strip() for mutant in mutants(source)] == ["break"]


SOURCE = '''
import os  # 1 + 1


CONSTANT = 3


class Words:
    """Not 1 < 2."""

    size: int = 1

    @property
    def first(self) -> "int":
        """1 < 2 and 3."""
        größe = self.items[0] if self.items else 0; return größe + 1  # 2 < 3

    def many(self, limit=10):
        def inner(a, b):
            nonlocal limit
            limit = a < b
            return f"{a + 1} and {limit}"

        text = """
        1 < 2
        """
        return sorted(
            inner(limit, 2) for item in text
        )
'''


def test_one_line_changes_compiles_and_comes_back() -> None:
    found = mutants(SOURCE)
    assert {mutant.function for mutant in found} == {"Words.first", "Words.many", "Words.many.inner"}
    for mutant in found:
        changed = mutant.apply(SOURCE)
        pairs = list(zip(SOURCE.split("\n"), changed.split("\n"), strict=True))
        assert [number for number, (old, new) in enumerate(pairs, start=1) if old != new] == [mutant.line]
        assert mutant.revert(changed) == SOURCE
        compile(changed, "mutant", "exec")
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert mutant.family in FAMILIES


def test_text_beyond_ascii_keeps_its_place() -> None:
    assert "größe = self.items[0] if self.items else 0; return größe - 1  # 2 < 3" in {
        mutant.after.strip() for mutant in mutants(SOURCE)
    }


def test_what_is_no_code_of_a_function_is_left_alone() -> None:
    lines = {mutant.before.strip() for mutant in mutants(SOURCE)}
    assert not [
        line for line in lines if "CONSTANT" in line or "Not 1" in line or line.startswith(("1 <", "@", "size"))
    ]
    assert not [
        mutant for mutant in mutants(SOURCE) if mutant.before.strip().startswith("return f") and "a - 1" in mutant.after
    ]


def test_the_same_source_gives_the_same_mutants() -> None:
    found = mutants(SOURCE)
    assert found == mutants(SOURCE)
    assert len({(mutant.line, mutant.after) for mutant in found}) == len(found)
    lines = list(by_line(found))
    assert [mutant for line in lines for mutant in line] == list(found)
    assert all(len({mutant.line for mutant in line}) == 1 for line in lines)


def test_line_ends_stay() -> None:
    source = "def function(a):\r\n    return a\r\n"
    (mutant,) = mutants(source)
    assert mutant.apply(source) == "def function(a):\r\n    return None\r\n"
    assert mutant.revert(mutant.apply(source)) == source


def test_another_source_is_refused() -> None:
    mutant = Mutant(family="return", function="f", line=2, before="    return a", after="    return None")
    with pytest.raises(ValueError, match="line 2 is"):
        mutant.apply("def f(a):\n    return b\n")
    with pytest.raises(ValueError, match="line 2 is"):
        mutant.apply("x = 1\n")
