"""What all renderers on top of the package `renderers` share.

A stream is extended by the family's own bridge, if there is one, or else by a difference that proves itself
(`engine.tokens.extension`); if neither holds, it is not extended. Harnesses speak as system also later on (Claude Code,
Codex); to a family that hears it at the beginning alone, what is said later is a user's message.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tokens.extension import extension
from engine.tokens.follow import Marks, TurnFollower
from engine.tokens.parsing import to_turn, without
from engine.tokens.probe import Write, misread, writes_calls
from engine.tokens.renderer import CannotRender, Chat, Follower, ParsedTurn, Shape, Tools
from engine.tokens.tokenizer import CheckpointTokenizer

_SYSTEM_LATER = tuple({"role": role, "content": "x"} for role in ("system", "user", "system"))


class BackedRenderer:
    """One renderer of the package `renderers` behind the `Renderer` protocol."""

    def __init__(self, name: str, inner: Any, tokenizer: CheckpointTokenizer, *, followed: bool) -> None:
        """`followed`: its turns have the form that `engine.tokens.follow` reads while they are sampled."""
        self.name = name
        self.taught: Write | None = None
        """How the checkpoint's own template writes, where it has one that is not this renderer's."""
        self.stop_token_ids = tuple(int(token) for token in inner.get_stop_token_ids())
        self.longest_token = tokenizer.longest
        self._inner = inner
        self._tokenizer = tokenizer
        self._clean = without(tokenizer.special_texts)
        self._think_end = tokenizer.convert_tokens_to_ids("</think>")
        self._marks = Marks(tokenizer, self._clean) if followed and tokenizer.byte_level else None
        self._system_anywhere = self._renders(_SYSTEM_LATER)

    def render(self, messages: Chat, tools: Tools) -> NDArray[np.int32]:
        first = 0 if self._system_anywhere else sum(1 for _ in takewhile(_is_system, messages))
        if first > 1:
            text = "\n\n".join(message["content"] for message in messages[:first])
            messages = [{"role": "system", "content": text}, *messages[first:]]
        return _array(self._ids([*messages[: min(first, 1)], *self._sayable(messages[min(first, 1) :])], tools))

    def extend(
        self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], messages: Chat, tools: Tools
    ) -> NDArray[np.int32] | None:
        before, turn = prompt.tolist(), sampled.tolist()
        messages = self._sayable(messages)
        bridged = self._bridged(before, turn, messages, tools)
        if bridged is not None:
            stream = before + turn
            if bridged[: len(stream)] == stream:
                return _array(bridged[len(stream) :])
        tail = self.proved_tail(messages, tools)
        if tail is None:
            return None
        return _array(tail[1:] if turn and turn[-1] in self.stop_token_ids else tail)

    def _bridged(self, before: list[int], turn: list[int], messages: Chat, tools: Tools) -> list[int] | None:
        try:
            bridged = self._inner.bridge_to_next_turn(before, turn, list(messages), tools=list(tools) or None)
        except Exception:  # no common base either: messages that it did not foresee are rendered, or refused, whole
            return None
        return None if bridged is None else list(bridged.token_ids)

    def proved_tail(self, messages: Chat, tools: Tools) -> list[int] | None:
        """Ids from the closing token of any turn to the next turn's beginning; None where that cannot be proved."""
        try:
            return extension(lambda chat: self._ids(chat, tools), messages, self.stop_token_ids)
        except CannotRender:
            return None

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Tools) -> ParsedTurn:
        ids = sampled.tolist()
        try:
            turn = self._parse(prompt.tolist(), ids, tools)
            if not turn.calls and not turn.content and self._think_end in ids:
                # A call within the thinking and nothing after it: it is all that the model said, so it is meant.
                within = self._parse(prompt.tolist(), ids[: ids.index(self._think_end)], tools)
                turn = within if within.calls else turn
            return turn
        except Exception:
            # A sampled turn can be anything (arguments nested a thousand deep); no parser of it may end a trial.
            return ParsedTurn(content=self._clean(self._tokenizer.decode(ids)), reasoning="", calls=())

    def follow(self, prompt: NDArray[np.int32], tools: Tools, *, calls: bool) -> Follower | None:
        if self._marks is None:
            return None
        thinking = self._thinks(prompt.tolist())
        return TurnFollower(
            self._marks, lambda ids: self.parse(prompt, _array(list(ids)), tools), thinking=thinking, calls=calls
        )

    def _parse(self, prompt: list[int], ids: list[int], tools: Tools) -> ParsedTurn:
        parsed = self._inner.parse_response(ids, tools=list(tools) or None, prompt_ids=prompt)
        decode = self._tokenizer.decode
        return to_turn(parsed, tools, self._clean, lambda start, end: decode(ids[start:end]))

    def misreads(self, shape: Shape) -> str:
        writers: dict[str, Write] = {f"the renderer `{self.name}`": self._ids}
        if self.taught is not None and writes_calls(self.taught, shape.name):
            writers["the checkpoint's chat template"] = self.taught
        for writer, write in writers.items():
            problem = misread(self, write, shape, self._thinks)
            if problem:
                return f"{problem}, as {writer} writes them"
        return ""

    def _thinks(self, prompt: list[int]) -> bool:
        from renderers.reasoning import prompt_ends_in_reasoning

        return bool(prompt_ends_in_reasoning(self._tokenizer, prompt, stop_ids=frozenset(self.stop_token_ids)))

    def token_texts(self, ids: NDArray[np.int32]) -> list[str]:
        return [self._tokenizer.decode([token]) for token in ids.tolist()]

    def _sayable(self, messages: Chat) -> list[Mapping[str, Any]]:
        """Messages that follow others, in roles that the family has for them there."""
        if self._system_anywhere:
            return list(messages)
        return [{**message, "role": "user"} if _is_system(message) else message for message in messages]

    def _renders(self, messages: Chat) -> bool:
        try:
            return bool(self._ids(messages, ()))
        except CannotRender:
            return False

    def _ids(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> list[int]:
        chat = list(messages)
        try:
            try:
                return self._rendered(chat, tools)
            except Exception:
                emptied = [_without_damage(message) for message in chat]
                if emptied == chat:
                    raise
                return self._rendered(emptied, tools)
        except Exception as problem:
            # What templates and hand-written renderers raise on messages they did not foresee has no common base.
            raise CannotRender(f"{self.name}: {problem}") from None

    def _rendered(self, chat: list[Mapping[str, Any]], tools: Tools) -> list[int]:
        return list(self._inner.render_ids(chat, tools=list(tools) or None, add_generation_prompt=True))


def _without_damage(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Calls whose arguments are no object without them: a template that walks through an object's members could never
    say such a call again, and a history that holds one would be refused for ever."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in calls]
    whole = [one if isinstance(one["arguments"], dict) else {**one, "arguments": {}} for one in functions]
    return {**message, "tool_calls": [{**call, "function": one} for call, one in zip(calls, whole, strict=True)]}


def _is_system(message: Mapping[str, Any]) -> bool:
    return bool(message["role"] == "system")


def _array(ids: list[int]) -> NDArray[np.int32]:
    return np.asarray(ids, dtype=np.int32)
