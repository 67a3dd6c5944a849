"""What follows a closed assistant turn, found by rendering two stand-in conversations and proved by comparing them.

A conversation of one user message and a stand-in assistant turn, continued by the new messages, is rendered twice with
different stand-ins. What precedes the stand-in must not have moved, the stand-in itself must be there, and what follows
its closing token must be the same in both: then it depends on the new messages alone and may follow any turn.
Otherwise the format is refused for these messages (None).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.tokens.renderer import Chat

RenderIds = Callable[[list[Mapping[str, Any]]], list[int]]
"""Messages to ids, generation prompt included."""

_STAND_INS = ("alpha", "one two three")


def extension(render: RenderIds, new: Chat, stops: Sequence[int]) -> list[int] | None:
    """Ids from the token that closes the assistant's turn (included) to where the next one begins."""
    user = {"role": "user", "content": "question"}
    stop_set = frozenset(stops)
    opening = render([user])
    closed = sum(token in stop_set for token in opening)
    turns, tails = [], []
    for text in _STAND_INS:
        ids = render([user, _stand_in(text, new), *new])
        close = _position(ids, stop_set, closed)
        if close is None or not _same_opening(opening, ids, stop_set, closed):
            return None
        turns.append(ids[:close])
        tails.append(ids[close:])
    return tails[0] if tails[0] == tails[1] and turns[0] != turns[1] else None


def _stand_in(text: str, new: Chat) -> dict[str, Any]:
    calls = []
    for message in new:
        if message["role"] != "tool":
            break
        function = {"name": "tool", "arguments": {"value": text}}
        calls.append({"id": message.get("tool_call_id", ""), "type": "function", "function": function})
    return (
        {"role": "assistant", "content": text, "tool_calls": calls} if calls else {"role": "assistant", "content": text}
    )


def _position(ids: Sequence[int], stops: frozenset[int], index: int) -> int | None:
    """Where the stop token number `index` stands."""
    seen = 0
    for position, token in enumerate(ids):
        if token in stops:
            if seen == index:
                return position
            seen += 1
    return None


def _same_opening(opening: Sequence[int], ids: Sequence[int], stops: frozenset[int], closed: int) -> bool:
    """Whether all up to the opening's last closing token stands unmoved."""
    if closed == 0:
        return True
    last = _position(opening, stops, closed - 1)
    return last is not None and list(opening[: last + 1]) == list(ids[: last + 1])
