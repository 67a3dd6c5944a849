"""A deterministic generator of text that looks like an agent's day: prose, code, diffs, shell, issues, JSON.

The project's tokeniser is trained on it, so no third-party text is needed. Same seed, same text, on every machine:
only `random.Random` and the word list beside this file are used. It refuses nothing; it reads no clock and no network.
"""

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

_ERRORS = ("TypeError", "ValueError", "KeyError", "IndexError", "AttributeError", "AssertionError", "RuntimeError")
_SHELL = (
    "ls -la {path}",
    "cd {path} && git status",
    "grep -rn '{name}' {path}",
    "sed -n '1,80p' {path}/{name}.py",
    "cat {path}/{name}.py",
    "python3 -m pytest -x -q tests/test_{name}.py",
    "git diff HEAD -- {path}",
    "find . -name '*.py' | xargs grep -l {name} | head -20",
    "python3 -c 'import {name}; print({name}.__version__)'",
    "echo $? && pwd",
)


@cache
def words() -> tuple[str, ...]:
    """The project's word list, in file order; early words are the frequent ones."""
    return tuple(dict.fromkeys((Path(__file__).parent / "words.txt").read_text("utf-8").split()))


class _Writer:
    """One random stream and the kinds of document that it can write."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (text, not secrets)
        self.vocabulary = words()
        self.identifiers = tuple(word for word in self.vocabulary if word.isascii() and word.isidentifier())
        self.cycle: list[str] = []

    def word(self) -> str:
        """Half the time a frequent word, else the next of a shuffled round over all of them: each gets its turn."""
        if self.random.random() < 0.4:
            return self.vocabulary[min(int(self.random.expovariate(1 / 90)), len(self.vocabulary) - 1)]
        if not self.cycle:
            self.cycle = list(self.vocabulary)
            self.random.shuffle(self.cycle)
        return self.cycle.pop()

    def name(self, parts: int = 2) -> str:
        return "_".join(self.random.choice(self.identifiers) for _ in range(self.random.randint(1, parts))).lower()

    def klass(self) -> str:
        return "".join(part.capitalize() for part in self.name(3).split("_"))

    def path(self) -> str:
        return "/".join(self.name(1) for _ in range(self.random.randint(1, 3)))

    def sentence(self) -> str:
        text = " ".join(self.word() for _ in range(self.random.randint(5, 16)))
        if self.random.random() < 0.35:
            split = text.split(" ")
            split[self.random.randrange(len(split))] = self.random.choice(
                (f"`{self.name()}`", f'"{self.word()}"', f"({self.word()} {self.word()})", f"{self.name()}()", "e.g.,")
            )
            text = " ".join(split)
        ending = self.random.choice((".", ".", ".", ":", "?", ", and so on.", "!"))
        return text[0].upper() + text[1:] + ending

    def paragraph(self) -> str:
        return " ".join(self.sentence() for _ in range(self.random.randint(2, 6)))

    def bullets(self) -> str:
        mark = self.random.choice(("* ", "- ", "{}. ", "  - ", "   {}. "))
        return "\n".join(mark.format(n) + self.sentence() for n in range(1, self.random.randint(3, 8)))

    def prompt(self) -> str:
        tag = "_".join(self.word() for _ in range(self.random.randint(1, 3))).upper()
        return f"<{tag}>\n{self.bullets()}\n</{tag}>\n\n# {self.word().title()} {self.word()}\n\n{self.paragraph()}\n"

    def function(self, indent: str = "") -> str:
        a, b, f = self.name(), self.name(), self.name()
        lines = [
            f"def {f}({a}: {self.random.choice(('str', 'int', 'bytes', 'list[str]', 'float | None'))}, {b}=None):",
            f'    """{self.sentence()}"""',
            f"    if {a} is None or not isinstance({a}, {self.random.choice(('str', 'int', 'dict', 'list'))}):",
            f"        raise {self.random.choice(_ERRORS)}(f'{self.word()} {{{a}!r}}')",
            f"    {b} = [{self.name(1)} for {self.name(1)} in {a}.{self.name(1)}() if {self.name(1)} != '']",
            f"    for {self.name(1)}, {self.name(1)} in enumerate({b}):",
            f"        self.{self.name()}[{a}] = {self.name()}({b}, {self.name(1)}={self.random.randint(0, 300)})",
            f"        {b} += {self.name(1)}[{self.random.randint(0, 9)}:-1]  # {self.word()} {self.word()}",
            f"    return {b} or {self.random.choice(('None', 'True', '{}', '[]', repr(self.word())))}",
        ]
        return "\n".join(indent + line for line in lines) + "\n"

    def module(self) -> str:
        head = f"import {self.name(1)}\nfrom {self.name(1)}.{self.name(1)} import {self.klass()}, {self.name()}\n\n\n"
        body = f"class {self.klass()}({self.klass()}):\n    {self.name()}: int = {self.random.randint(0, 99)}\n\n"
        return head + body + self.function("    ") + "\n\n" + self.function()

    def diff(self) -> str:
        file = f"{self.path()}/{self.name()}.py"
        old = self.function().splitlines()
        new = self.function().splitlines()
        start = self.random.randint(1, 400)
        hunk = f"@@ -{start},{len(old)} +{start},{len(old)} @@ def {self.name()}(self):"
        lines = [f" {a}" if self.random.random() < 0.5 else f"-{a}\n+{b}" for a, b in zip(old, new, strict=True)]
        return f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n{hunk}\n" + "\n".join(lines) + "\n"

    def shell(self) -> str:
        command = self.random.choice(_SHELL).format(path=self.path(), name=self.name())
        output = "\n".join(
            f"{self.path()}/{self.name()}.py:{self.random.randint(1, 900)}: {self.sentence()}" for _ in "ab"
        )
        test = f"tests/test_{self.name()}.py::test_{self.name()}"
        error = self.random.choice(_ERRORS)
        report = (
            f'Traceback (most recent call last):\n  File "/workspace/{self.path()}.py", '
            f"line {self.random.randint(1, 900)}, in {self.name()}\n"
            f"    {self.name()} = {self.name()}[{self.name()}]\n{error}: {self.sentence()}\n"
            f"FAILED {test} - {error}: {self.word()}\n"
            f"{'=' * 20} {self.random.randint(1, 9)} failed, {self.random.randint(1, 200)} passed "
            f"in 0.{self.random.randint(1, 99)}s {'=' * 20}\n"
        )
        return f"$ {command}\n{output}\n" + (report if self.random.random() < 0.5 else "")

    def issue(self) -> str:
        return (
            f"## {self.sentence()}\n\n{self.paragraph()}\n\n```python\n>>> {self.name()}."
            f"{self.name()}({self.word()!r})\n{self.word()!r}\n"
            f"```\n\n### Expected\n\n{self.sentence()}\n\n{self.bullets()}\n"
        )

    def schema(self) -> str:
        """A tool's JSON schema, as it stands in a system prompt."""
        properties = {
            self.name(): {
                "type": self.random.choice(("string", "integer", "boolean", "array", "object")),
                "description": self.sentence(),
                **({"enum": [self.name(1) for _ in range(3)]} if self.random.random() < 0.4 else {}),
            }
            for _ in range(self.random.randint(1, 4))
        }
        function = {
            "name": self.name(),
            "description": self.paragraph() + "\n\n### " + self.word().title() + "\n" + self.bullets(),
            "parameters": {"type": "object", "properties": properties, "required": [next(iter(properties))]},
        }
        return json.dumps({"type": "function", "function": function}) + "\n"

    def call(self) -> str:
        """A tool call's JSON, as the assistant writes it."""
        command = self.random.choice(_SHELL).format(path=self.path(), name=self.name())
        arguments = self.random.choice(
            (
                {"command": command, "security_risk": "LOW", "summary": self.sentence()},
                {
                    "command": "str_replace",
                    "path": f"/{self.path()}.py",
                    "old_str": "    x = 1\n",
                    "new_str": self.function(),
                },
                {"command": "view", "path": f"/workspace/{self.path()}.py", "view_range": [1, 80]},
                {"message": self.sentence()},
            )
        )
        return json.dumps({"name": self.name(), "arguments": arguments}) + "\n"


def documents(seed: int, count: int) -> Iterator[str]:
    """`count` documents of mixed kinds."""
    writer = _Writer(seed)
    kinds: tuple[tuple[Callable[[], str], int], ...] = (
        (writer.prompt, 5),
        (writer.module, 3),
        (writer.diff, 2),
        (writer.shell, 3),
        (writer.issue, 3),
        (writer.schema, 4),
        (writer.call, 3),
    )
    weighted = [kind for kind, weight in kinds for _ in range(weight)]
    for _ in range(count):
        yield writer.random.choice(weighted)()
