"""Small modules that this project writes itself: one function, one line that may be wrong, tests of literal values.

They exist for policies too small to read real code: variable names are fixed and the same few lines return in many
modules, while each function (what comes before and after the line) is another. A family is a set of lines that fit one
place, each with its meaning in words, and a set of surroundings.

Invariant: no two modules are alike, and in each the tests tell the right line from every other line of its family that
is offered as a bug. Expected values come from running the right module, which is this file's own text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.tasks.bundles import Bundle, Module
from engine.tasks.mutator import Mutant

_NUMBERS: tuple[list[int], ...] = ([3, 1, 2], [5, -4, 0, 5, 8], [], [2, 2, 7], [-1, -6, 4, 3, 9, 1], [10])
_WORDS = ("one two", "Ab-cd", "", "x", "The END of it", "  padded Word ")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Lines that fit one place."""

    name: str
    lines: Mapping[str, str]
    """Line, without indentation → what it means, in words."""
    surroundings: Mapping[str, tuple[str, str]]
    """Name → (body with `{line}` in place, words with `{meaning}` in place)."""
    parameters: str
    inputs: tuple[tuple[Any, ...], ...]
    """Arguments of the tests."""


_BEFORE = {
    "plain": ("", ""),
    "even": ("items = [item for item in items if item % 2 == 0]", " Only even items count."),
    "positive": ("items = [item for item in items if item > 0]", " Only items above zero count."),
    "doubled": ("items = [item * 2 for item in items]", " Items are doubled first."),
    "squared": ("items = [item * item for item in items]", " Items are squared first."),
    "turned": ("items = items[::-1]", " Items are taken from the end."),
    "negated": ("items = [-item for item in items]", " Items are negated first."),
    "shifted": ("items = [item + 1 for item in items]", " One is added to every item first."),
}
_TEXT_BEFORE = {
    "plain": ("", ""),
    "stripped": ("text = text.strip()", " Blanks around the text are dropped first."),
    "joined": ('text = text.replace(" ", "")', " Blanks are dropped first."),
    "turned": ("text = text[::-1]", " The text is turned round first."),
    "dashed": ('text = text.replace(" ", "-")', " Blanks become dashes first."),
    "doubled": ('text = text + " " + text', " The text is doubled first."),
    "marked": ('text = "x" + text', " An x is put in front first."),
    "ended": ('text = text + "Z"', " A Z is put at the end first."),
}
_LOOPS = {
    "count": (
        "total = 0\nfor item in items:\n    {line}\n        total += 1\nreturn total",
        "the number of items {meaning}",
    ),
    "sum": (
        "total = 0\nfor item in items:\n    {line}\n        total += item\nreturn total",
        "the sum of the items {meaning}",
    ),
    "keep": (
        "result = []\nfor item in items:\n    {line}\n        result.append(item)\nreturn result",
        "the list of the items {meaning}",
    ),
    "drop": (
        "result = list(items)\nfor item in items:\n    {line}\n        result.remove(item)\nreturn result",
        "the list without the items {meaning}",
    ),
    "first": ("for item in items:\n    {line}\n        return item\nreturn None", "the first item {meaning}, or None"),
    "place": (
        "for index, item in enumerate(items):\n    {line}\n        return index\nreturn -1",
        "the index of the first item {meaning}, or -1",
    ),
    "last": (
        "result = None\nfor item in items:\n    {line}\n        result = item\nreturn result",
        "the last item {meaning}, or None",
    ),
    "any": ("for item in items:\n    {line}\n        return True\nreturn False", "whether there is any item {meaning}"),
}


def _before(steps: Mapping[str, tuple[str, str]], words: str) -> dict[str, tuple[str, str]]:
    """Surroundings that do one step before the line."""
    return {
        name: (f"{step}\n{{line}}" if step else "{line}", words + "." + after) for name, (step, after) in steps.items()
    }


FAMILIES = (
    Family(
        name="threshold",
        parameters="items, limit",
        lines={
            "if item >= limit:": "of at least limit",
            "if item > limit:": "above limit",
            "if item <= limit:": "of at most limit",
            "if item < limit:": "below limit",
            "if item == limit:": "equal to limit",
            "if item != limit:": "other than limit",
        },
        surroundings={name: (body, words + ".") for name, (body, words) in _LOOPS.items()},
        inputs=tuple((items, limit) for items in _NUMBERS for limit in (2, 5)),
    ),
    Family(
        name="interval",
        parameters="items, low, high",
        lines={
            "if item >= low and item <= high:": "from low to high, both included",
            "if item > low and item < high:": "between low and high, both left out",
            "if item >= low and item < high:": "from low up to high, high left out",
            "if item < low or item > high:": "outside of low to high",
        },
        surroundings={name: (body, words + ".") for name, (body, words) in _LOOPS.items()},
        inputs=tuple((items, *bounds) for items in _NUMBERS for bounds in ((2, 5), (1, 8), (3, 9))),
    ),
    Family(
        name="slice",
        parameters="items, count",
        lines={
            "return items[:count]": "the first count items",
            "return items[count:]": "all but the first count items",
            "return items[-count:]": "the last count items",
            "return items[:-count]": "all but the last count items",
            "return items[::count]": "every count-th item from the first on",
        },
        surroundings=_before(_BEFORE, "{meaning}"),
        inputs=tuple((items, count) for items in _NUMBERS for count in (1, 2)),
    ),
    Family(
        name="fold",
        parameters="items, total",
        lines={
            "total = total + item": "every item added to total",
            "total = total - item": "every item taken from total",
            "total = total * item": "total multiplied by every item",
            "total = max(total, item)": "the largest of total and the items",
            "total = min(total, item)": "the smallest of total and the items",
        },
        surroundings={
            name: (f"{step}\nfor item in items:\n    {{line}}\nreturn total".lstrip(), "{meaning}." + after)
            for name, (step, after) in _BEFORE.items()
        },
        inputs=tuple((items, total) for items in _NUMBERS for total in (1, 3)),
    ),
    Family(
        name="order",
        parameters="items",
        lines={
            "return sorted(items)": "the items from small to large",
            "return sorted(items, reverse=True)": "the items from large to small",
            "return sorted(items, key=abs)": "the items by their absolute value",
            "return sorted(set(items))": "the items from small to large, each once",
            "return list(items)": "the items in their order",
        },
        surroundings=_before(_BEFORE, "{meaning}"),
        inputs=tuple((items,) for items in (*_NUMBERS, [4, -4, 2, -9], [6, 2, 8, 2], [0, -2, 6, 4])),
    ),
    Family(
        name="letters",
        parameters="text",
        lines={
            "return text.lower()": "the text in small letters",
            "return text.upper()": "the text in capital letters",
            "return text.title()": "the text with a capital letter at each word's start",
            "return text.capitalize()": "the text with one capital letter at its start",
            "return text.swapcase()": "the text with small and capital letters swapped",
        },
        surroundings=_before(_TEXT_BEFORE, "{meaning}"),
        inputs=tuple((text,) for text in _WORDS),
    ),
    Family(
        name="words",
        parameters="text",
        lines={
            "return text.split()[0]": "the first word",
            "return text.split()[-1]": "the last word",
            "return min(text.split())": "the first word of the alphabet",
            "return max(text.split())": "the last word of the alphabet",
            "return max(text.split(), key=len)": "the longest word",
        },
        surroundings=_before(_TEXT_BEFORE, "{meaning}"),
        inputs=tuple((text,) for text in ("b c ad", "two", "cc Abc b", "The END of it", " padded Word here")),
    ),
)
LINES_NAMED_SAME = "solve"
"""Name of every generated function: what differs is its body."""


def generated_bundles() -> tuple[Bundle, ...]:
    """One bundle a family; the same on every machine."""
    return tuple(_bundle(family) for family in FAMILIES)


def _bundle(family: Family) -> Bundle:
    repository: dict[str, tuple[bytes, bool]] = {}
    withheld: dict[str, tuple[bytes, bool]] = {}
    modules = []
    for number, (source, line, words) in enumerate(_sources(family)):
        name = f"{family.name}_{number:02d}"
        tests = f"tests/test_{name}.py"
        repository[f"{name}.py"] = (source.encode(), False)
        withheld[tests] = (_tests(name, family, source).encode(), False)
        modules.append(
            Module(path=f"{name}.py", tests=(tests,), mutants=_mutants(family, source, line), behaviour=words)
        )
    return Bundle(
        name=family.name,
        kind="generated",
        license="Apache-2.0",
        repository=repository,
        withheld=withheld,
        test_paths=("tests",),
        python_path=(".",),
        modules=tuple(modules),
    )


def _sources(family: Family) -> Iterator[tuple[str, str, str]]:
    """(source, right line, words) of each module."""
    for body, words in family.surroundings.values():
        for line, meaning in family.lines.items():
            text = "\n".join("    " + part for part in body.replace("{line}", line).split("\n"))
            said = words.replace("{meaning}", meaning)
            yield f"def {LINES_NAMED_SAME}({family.parameters}):\n{text}\n", line, f"It must return {said}"


def _mutants(family: Family, source: str, line: str) -> tuple[Mutant, ...]:
    """The family's other lines in the line's place."""
    number, before = next(
        (number, text) for number, text in enumerate(source.split("\n"), start=1) if text.strip() == line
    )
    indent = before[: len(before) - len(line)]
    return tuple(
        Mutant(family=family.name, function=LINES_NAMED_SAME, line=number, before=before, after=indent + other)
        for other in family.lines
        if other != line
    )


def _tests(name: str, family: Family, source: str) -> str:
    """A test a call, with the value that the right module gives."""
    namespace: dict[str, Any] = {}
    exec(compile(source, name, "exec"), namespace)  # noqa: S102 - this file's own text
    lines = [f"from {name} import {LINES_NAMED_SAME}\n"]
    for number, arguments in enumerate(family.inputs):
        try:
            value = repr(namespace[LINES_NAMED_SAME](*arguments))
        except (IndexError, ValueError):
            continue  # nothing is asked of it there
        call = ", ".join(repr(argument) for argument in arguments)
        lines.append(f"def test_{number}():\n    assert {LINES_NAMED_SAME}({call}) == {value}\n")
    return "\n\n".join(lines)
