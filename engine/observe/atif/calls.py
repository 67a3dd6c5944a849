"""The calls of one trial, read from its stored row: what each was told, what it answered, and after which call.

Invariant: ids, log-probabilities and policy versions are the stored ones, untouched. A body that cannot be read as its
protocol has no messages, or no answer, and says so (`unread`); its tokens are there all the same.
Refuses calls that are no tree, and prompts whose stored pieces do not add up to the stored length.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import AlignmentError
from engine.wire.messages import Message, Refusal, ToolCall
from engine.wire.recorded import answer_made, request_sent

READ = ("id", "parent", "kind", "protocol", "request", "response")
"""Of a stored exchange, what its meaning is read from."""
UNREADABLE = (Refusal, ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What a body that is no request, or no answer, of its protocol raises."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One LLM call."""

    number: int
    """In order of arrival."""
    row: Mapping[str, Any]
    """The stored exchange."""
    messages: tuple[Message, ...]
    """The whole history that it was told."""
    tools: tuple[Mapping[str, Any], ...]
    """OpenAI tool objects."""
    answer: Message
    unread: tuple[str, ...]
    """Which of its bodies could not be read."""

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def trained(self) -> bool:
        return bool(self.row["kind"] == "policy")

    @property
    def said(self) -> str:
        """The letters of the request: a client that asks again sends the same."""
        return str(self.row["request"])

    def made(self) -> Iterable[ToolCall]:
        return self.answer.tool_calls


def read_calls(exchanges: Sequence[Mapping[str, Any]]) -> list[Call]:
    """All of a trial's calls, in order of arrival. Raises AlignmentError where they are no tree."""
    known: set[str] = set()
    for row in exchanges:
        if row["parent"] is not None and row["parent"] not in known:
            problem = f"goes on from {row['parent']}, which is no call before it"
            raise AlignmentError(f"exchange {row['id']}: it {problem}; the trial's file is damaged")
        if row["id"] in known:
            raise AlignmentError(f"exchange {row['id']}: there are two; the trial's file is damaged")
        known.add(row["id"])
    return [_read(number, row) for number, row in enumerate(exchanges)]


def _read(number: int, row: Mapping[str, Any]) -> Call:
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    answer, unread = Message(role="assistant", text=""), []
    try:
        request = request_sent(row["protocol"], row["request"])
        messages, tools = request.messages, request.tools
    except UNREADABLE:
        unread.append("request")
    try:
        answer = answer_made(row["protocol"], row["response"])
    except UNREADABLE:
        unread.append("response")
    return Call(number=number, row=row, messages=messages, tools=tools, answer=answer, unread=tuple(unread))


def path_to(call: Call, calls: Mapping[str, Call]) -> tuple[Call, ...]:
    """The calls whose streams the call's prompt begins with, the first one first, and the call itself."""
    path = [call]
    while path[-1].row["parent"] is not None:
        path.append(calls[path[-1].row["parent"]])
    return tuple(reversed(path))


def prompts(path: Sequence[Call]) -> dict[str, list[int]]:
    """Id of each call of a path → all token ids of its prompt. Raises AlignmentError."""
    stream: list[int] = []
    found = {}
    for call in path:
        stream += call.row["prompt_ids"]
        if len(stream) != call.row["prompt_length"]:
            raise AlignmentError(
                f"exchange {call.id}: its prompt is stored in pieces of {len(stream)} tokens, "
                f"and has {call.row['prompt_length']}; the trial's file is damaged"
            )
        found[call.id] = list(stream)
        stream += call.row["sampled_ids"]
    return found
