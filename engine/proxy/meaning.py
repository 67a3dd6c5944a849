"""When two messages say the same.

Every harness rewrites the turns that it echoes: arguments are re-serialised, reasoning is dropped, blank text comes and
goes, a string becomes text parts, parallel results change places, a call that could not be run is renamed. None of
that is a new meaning. A changed word, argument, name or order of calls is one.
"""

import re
from collections.abc import Sequence
from typing import Any

from engine.wire.messages import Message, ToolCall, arguments_object

_TRAILING = re.compile(r"[ \t\r]+$", re.MULTILINE)
_EMPTY: tuple[Any, ...] = (None, False, "", [], {})


def plain(text: str) -> str:
    """The text without what is not meant: white space at its ends and at the ends of lines."""
    text = text.strip()
    return _TRAILING.sub("", text) if " \n" in text or "\t\n" in text or "\r" in text else text


def same_reply(ours: Message, theirs: Message, damaged: frozenset[str]) -> bool:
    """Whether an assistant message of a history is the one that was answered.

    `damaged` holds the ids of calls that no harness can echo as they were (arguments that are no object, tools that do
    not exist): of these the id alone counts."""
    if len(ours.tool_calls) != len(theirs.tool_calls) or plain(ours.text) != plain(theirs.text):
        return False
    if theirs.reasoning and plain(ours.reasoning) != plain(theirs.reasoning):
        return False
    return all(map(_same_call, ours.tool_calls, theirs.tool_calls, [damaged] * len(ours.tool_calls)))


def _same_call(ours: ToolCall, theirs: ToolCall, damaged: frozenset[str]) -> bool:
    if ours.id == theirs.id and ours.id in damaged:
        return True
    if ours.name != theirs.name:
        return False
    if ours.arguments == theirs.arguments:
        return True
    mine, echoed = arguments_object(ours.arguments), arguments_object(theirs.arguments)
    return mine is not None and echoed is not None and _same_value(mine, echoed)


def _same_value(ours: Any, theirs: Any) -> bool:
    """JSON equality that forgives what serialisers do: 5000.0 and 5000, trailing white space, empty defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same_member(ours, theirs, key) for key in ours.keys() | theirs.keys())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same_value, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str):
        return plain(ours) == plain(theirs)
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return bool(ours == theirs)


def _same_member(ours: dict[str, Any], theirs: dict[str, Any], key: str) -> bool:
    if key in ours and key in theirs:
        return _same_value(ours[key], theirs[key])
    value = ours.get(key, theirs.get(key))
    return any(type(value) is type(empty) and value == empty for empty in _EMPTY)


def exact_key(message: Message) -> tuple[Any, ...]:
    """Equal for messages that are equal to the letter."""
    return (message.role, message.text, message.tool_call_id, message.tool_calls, message.reasoning)


def plain_key(message: Message) -> tuple[Any, ...]:
    """Equal for messages of others (not sampled here) that say the same."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return (message.role, plain(message.text), message.tool_call_id, calls)


def _canonical(arguments: str) -> str:
    parsed = arguments_object(arguments)
    return arguments if parsed is None else repr(sorted(parsed.items()))


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """The same messages, with the results of parallel calls in the order of the calls."""
    ordered: list[Message] = []
    order: dict[str, int] = {}
    run: list[Message] = []
    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        ordered += _sorted_run(run, order)
        run = []
        ordered.append(message)
        if message.role == "assistant":
            order = {call.id: index for index, call in enumerate(message.tool_calls)}
    return ordered + _sorted_run(run, order)


def _sorted_run(run: list[Message], order: dict[str, int]) -> list[Message]:
    if len(run) < 2:
        return run
    return sorted(run, key=lambda message: order.get(message.tool_call_id, len(order)))
