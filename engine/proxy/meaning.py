"""When two messages say the same.

Every harness rewrites the turns that it echoes: arguments are re-serialised, reasoning is dropped, blank text comes and
goes, a string becomes text parts, parallel results change places, a call that could not be run is renamed. None of
that is a new meaning. A changed word, argument, name or order of calls is one.

A call that comes back under the id that the proxy minted is that very call, as the harness understood it: defaults that
were filled in and values that were read as their schema's type (`"5"` as 5) are its reading, not an edit. Text that a
harness changes or moves without meaning anything by it (billing headers, reminders) is named by its configuration.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from engine.wire.messages import Message, ToolCall, arguments_object

_EMPTY: tuple[Any, ...] = (None, False, "", [], {})

Clean = Callable[[str], str]
"""Takes out of a text what its harness does not mean."""


def without_volatile(patterns: Sequence[str]) -> Clean:
    """Takes out what the regular expressions match, with the white space around it."""
    if not patterns:
        return lambda text: text
    joined = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))

    def clean(text: str) -> str:
        """White space is cut off afterwards: by the expression, a long run of it would be searched from each place."""
        kept, start = [], 0
        for found in joined.finditer(text):
            kept.append(text[start : found.start()])
            start = found.end()
        if not kept:
            return text
        rest = text[start:]
        return "\n".join([kept[0].rstrip(), *(part.strip() for part in kept[1:]), rest.lstrip()])

    return clean


def plain(text: str) -> str:
    """The text without what is not meant: white space at its ends and at the ends of lines."""
    text = text.strip()
    if " \n" in text or "\t\n" in text or "\r" in text:
        return "\n".join(line.rstrip(" \t\r") for line in text.split("\n"))
    return text


def same_reply(ours: Message, theirs: Message, damaged: frozenset[str], clean: Clean = str) -> bool:
    """Whether an assistant message of a history is the one that was answered.

    `damaged` holds the ids of calls that no harness can echo as they were (arguments that are no object or that the
    tool does not have, tools that do not exist): of these the id alone counts."""
    if len(ours.tool_calls) != len(theirs.tool_calls) or plain(clean(ours.text)) != plain(clean(theirs.text)):
        return False
    if theirs.reasoning and plain(ours.reasoning) != plain(theirs.reasoning):
        return False
    return all(map(_same_call, ours.tool_calls, theirs.tool_calls, [damaged] * len(ours.tool_calls)))


def _same_call(ours: ToolCall, theirs: ToolCall, damaged: frozenset[str]) -> bool:
    minted = ours.id == theirs.id
    if minted and ours.id in damaged:
        return True
    if ours.name != theirs.name:
        return False
    if ours.arguments == theirs.arguments:
        return True
    mine, echoed = arguments_object(ours.arguments), arguments_object(theirs.arguments)
    return mine is not None and echoed is not None and _same_value(mine, echoed, minted)


def _same_value(ours: Any, theirs: Any, minted: bool) -> bool:
    """JSON equality that forgives what serialisers do: 5000.0 and 5000, trailing white space, empty defaults; of a
    call whose id is the proxy's own also any default that was added, and a text that was read as what it spells."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same_member(ours, theirs, key, minted) for key in ours.keys() | theirs.keys())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same_value, ours, theirs, [minted] * len(ours)))
    if isinstance(ours, str) and isinstance(theirs, str):
        return plain(ours) == plain(theirs)
    if isinstance(ours, str):
        spelled = _spelled(ours) if minted else None
        return spelled is not None and _same_value(spelled, theirs, minted)
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return bool(ours == theirs)


def _same_member(ours: dict[str, Any], theirs: dict[str, Any], key: str, minted: bool) -> bool:
    if key in ours and key in theirs:
        return _same_value(ours[key], theirs[key], minted)
    if minted and key in theirs:
        return True
    return _is_empty(ours.get(key, theirs.get(key)))


def _spelled(text: str) -> Any:
    """The JSON value that is no text and that a text spells; None where it spells none."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return None if isinstance(value, str) else value


def can_echo(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a harness that reads arguments by its tool's schema can say the call again as it was."""
    functions = (tool["function"] for tool in tools)
    schema = next((function.get("parameters") or {} for function in functions if function["name"] == call.name), None)
    given = arguments_object(call.arguments)
    if schema is None or given is None:
        return False
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties"):
        return True
    return given.keys() <= properties.keys()


def exact_key(message: Message) -> tuple[Any, ...]:
    """Equal for messages that are equal to the letter."""
    return (message.role, message.text, message.tool_call_id, message.tool_calls, message.reasoning)


def plain_key(message: Message, answers: str, clean: Clean = str) -> tuple[Any, ...]:
    """Equal for messages of others (not sampled here) that say the same; `answers` names the call of a result."""
    calls = tuple((call.name, _canonical(call.arguments)) for call in message.tool_calls)
    return (message.role, plain(clean(message.text)), answers, calls)


def says_nothing(message: Message, clean: Clean) -> bool:
    """Whether all of a message is such text: it may stand anywhere or nowhere, and the conversation is the same."""
    beside = message.role in ("user", "system") and bool(message.text.strip())
    return beside and not clean(message.text).strip()


def is_side_call(messages: Sequence[Message], patterns: Sequence[str]) -> bool:
    """Whether a system message says so; no text of the task or of its tools can."""
    said = [message.text for message in messages if message.role == "system"] if patterns else []
    return any(re.search(pattern, text) for text in said for pattern in patterns)


def call_places(message: Message) -> dict[str, str]:
    """Id of each call → its place among them: what a result answers, whatever the harness calls the call."""
    return {call.id: str(index) for index, call in enumerate(message.tool_calls)}


def _canonical(arguments: str) -> str:
    parsed = arguments_object(arguments)
    return arguments if parsed is None else repr(_bare(parsed))


def _bare(value: Any) -> Any:
    """A JSON value without what serialisers add or choose: equal for what `_same_value` forgives in a foreign call."""
    if isinstance(value, dict):
        return sorted((key, _bare(one)) for key, one in value.items() if not _is_empty(one))
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if isinstance(value, str):
        return plain(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_empty(value: Any) -> bool:
    return any(type(value) is type(empty) and value == empty for empty in _EMPTY)


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
