"""What is certain of a turn while it is still being sampled, told piece by piece.

Invariant: nothing that was told is taken back. Reasoning and text are told as far as no later token can change them:
not half of a character, not white space that may turn out to be the end, not the beginning of what may become a control
token, and no text from the first mark of the format on, which waits for the turn's end (calls may be told once closed).
For turns of the family's own form the pieces together are exactly what `Renderer.parse` reads in the whole turn; where
a turn has a form of its own and the two differ, what was told stands, and what the whole turn says beyond it follows.

Fit for formats whose marks are tokens of their own and in which text precedes calls, over a byte-level vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from engine.tokens.renderer import ParsedCall, ParsedTurn, Piece
from engine.tokens.tokenizer import CheckpointTokenizer

_HALF = "\ufffd"
"""How a decoder writes bytes that are no character yet."""
_THINK, _THINK_END, _CALL, _CALL_END = "<think>", "</think>", "<tool_call>", "</tool_call>"

Parse = Callable[[Sequence[int]], ParsedTurn]
"""Reads a turn that is cut after the given ids."""


class Marks:
    """A tokenizer's marks; made once."""

    def __init__(self, tokenizer: CheckpointTokenizer, clean: Callable[[str], str]) -> None:
        self.decode, self.clean = tokenizer.decode, clean
        self.ids = tokenizer.added_ids
        self.think = tokenizer.convert_tokens_to_ids(_THINK)
        self.think_end = tokenizer.convert_tokens_to_ids(_THINK_END)
        self.call = tokenizer.convert_tokens_to_ids(_CALL)
        self.call_end = tokenizer.convert_tokens_to_ids(_CALL_END)
        self.texts = tokenizer.special_texts
        self._longest = max(map(len, self.texts), default=0)
        self._firsts = frozenset(text[:1] for text in self.texts)

    def certain(self, text: str) -> int:
        """How much of a text cannot be the beginning of a control token's, spelled by other tokens, nor its last white
        space."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and any(special.startswith(text[start:]) for special in self.texts):
                text = text[:start]
                break
        return len(text.rstrip())


class TurnFollower:
    """One turn; `calls`: whether they are told before the turn's end."""

    def __init__(self, marks: Marks, parse: Parse, *, thinking: bool, calls: bool) -> None:
        """`thinking`: the prompt has opened the reasoning already."""
        self._marks, self._parse, self._calls = marks, parse, calls
        self._ids: list[int] = []
        self._region: Literal["reasoning", "content", "held"] = "reasoning" if thinking else "content"
        self._calls_told = False
        """Whether what is held began with a call in the text: its calls are meant and no drafts of the reasoning, and
        no text goes before them as it may after a stray mark."""
        self._first = not thinking
        """Whether reasoning can still begin."""
        self._half: list[int] = []
        """Ids whose last character is not whole yet."""
        self._tail = ""
        """Of the region's text what was not told."""
        self._began = False
        """Whether anything of the region was told."""
        self._said: dict[str, str] = {"reasoning": "", "content": ""}
        self._said_calls: list[ParsedCall] = []

    def feed(self, ids: Sequence[int]) -> list[Piece | ParsedCall]:
        """More sampled ids."""
        told: list[Piece | ParsedCall] = []
        for token in ids:
            self._ids.append(token)
            if token in self._marks.ids:
                told += self._mark(token)
            elif self._region != "held":
                self._half.append(token)
        return told + self._tell(whole=False)

    def finish(self, turn: ParsedTurn) -> tuple[ParsedTurn, list[Piece | ParsedCall]]:
        """The whole turn as it was told, and what of it was not told yet."""
        rest: list[Piece | ParsedCall] = []
        said = dict(self._said)
        told_content = bool(said["content"])
        for kind, whole in (("reasoning", turn.reasoning), ("content", turn.content)):
            more = whole[len(said[kind]) :] if whole.startswith(said[kind]) else f"\n{whole}" if whole else ""
            if more and not (kind == "reasoning" and (told_content or self._said_calls)):
                said[kind] += more
                rest.append(Piece("reasoning" if kind == "reasoning" else "content", more))
        known = len(self._said_calls)
        same = list(turn.calls[:known]) == self._said_calls
        later = turn.calls[known:] if same else [call for call in turn.calls if call not in self._said_calls]
        rest += later
        calls = (*self._said_calls, *later)
        return ParsedTurn(content=said["content"], reasoning=said["reasoning"], calls=calls), rest

    def _mark(self, token: int) -> list[Piece | ParsedCall]:
        marks = self._marks
        if self._region == "held":
            return self._closed_calls() if token == marks.call_end else []
        if token == marks.think and self._first and self._blank():
            self._enter("reasoning")
            return []
        told = self._tell(whole=True, halves=token in (marks.call, marks.think_end))
        if token == marks.think_end and self._region == "reasoning":
            self._enter("content")
        else:
            self._calls_told = self._region == "content" and token == marks.call
            self._enter("held")
        return told

    def _closed_calls(self) -> list[Piece | ParsedCall]:
        if not self._calls or not self._calls_told:
            return []
        found = self._parse(self._ids).calls
        known = len(self._said_calls)
        if list(found[:known]) != self._said_calls:
            return []
        self._said_calls += found[known:]
        return list(found[known:])

    def _enter(self, region: Literal["reasoning", "content", "held"]) -> None:
        self._first = False
        self._region, self._half, self._tail, self._began = region, [], "", False

    def _blank(self) -> bool:
        return not self._began and not (self._tail + self._marks.decode(self._half)).strip()

    def _tell(self, *, whole: bool, halves: bool = True) -> list[Piece | ParsedCall]:
        """What is certain of the region by now; `whole`: it has ended. `halves`: so has a character that is not whole,
        which beyond a stray mark may go on."""
        if self._region == "held":
            return []
        if self._half:
            more = self._marks.decode(self._half)
            if whole or not more.endswith(_HALF):
                self._tail += more if halves else more.rstrip(_HALF)
                self._half = []
        certain = len(self._tail) if whole else self._marks.certain(self._tail)
        cleaned = self._marks.clean(self._tail[:certain])
        told = cleaned.rstrip()
        self._tail = cleaned[len(told) :] + self._tail[certain:]
        if not self._began:
            told = told.lstrip()
        if not told:
            return []
        self._began = True
        self._said[self._region] += told
        return [Piece(self._region, told)]
