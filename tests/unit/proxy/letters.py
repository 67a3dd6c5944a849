"""A renderer of one token a letter, for tests of the tree that need no tokenizer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tokens import ParsedCall, ParsedTurn

CLOSE, BEGIN = 1, 2
ROLES = {"system": 3, "user": 4, "tool": 5, "assistant": 6}


class Letters:
    """Each message is its role, its letters and CLOSE; BEGIN opens the assistant's turn. `!` opens a call's JSON."""

    name = "letters"
    stop_token_ids = (CLOSE,)
    longest_token = 1
    refuses_to_extend = False

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> NDArray[np.int32]:
        return np.asarray([len(tools) + 10, *self._tail(messages)], dtype=np.int32)

    def extend(
        self, prompt: Any, sampled: NDArray[np.int32], messages: Sequence[Mapping[str, Any]], tools: Any
    ) -> NDArray[np.int32] | None:
        if self.refuses_to_extend:
            return None
        closed = len(sampled) > 0 and sampled[-1] == CLOSE
        return np.asarray(([] if closed else [CLOSE]) + self._tail(messages), dtype=np.int32)

    def _tail(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            calls = [{**c["function"], "id": c["id"]} for c in message.get("tool_calls", [])]
            text = message["content"] + (json.dumps(calls) if calls else "")
            ids += [ROLES[message["role"]], *encode(text), CLOSE]
        return [*ids, BEGIN]

    def parse(self, prompt: Any, sampled: NDArray[np.int32], tools: Any) -> ParsedTurn:
        text, mark, raw = decode(sampled).partition("!")
        if not mark:
            return ParsedTurn(content=text, reasoning="", calls=())
        try:
            well_formed = isinstance(json.loads(raw), dict)
        except ValueError:
            well_formed = False
        call = ParsedCall(name="terminal", arguments=raw, well_formed=well_formed)
        return ParsedTurn(content=text, reasoning="", calls=(call,))

    def follow(self, prompt: Any, tools: Any, *, calls: bool) -> None:
        """Its turns are told when they are whole."""

    def token_texts(self, ids: NDArray[np.int32]) -> list[str]:
        return [chr(token) for token in ids.tolist()]


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def decode(ids: NDArray[np.int32]) -> str:
    return "".join(chr(token) for token in ids.tolist() if token > 20)
