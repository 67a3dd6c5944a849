"""Before anything starts: does the renderer write as the model was taught, and its parser read what the model writes?

A prompt of another form than the checkpoint's own template has is one that the model was never taught (`misfit`).

A parser that does not fit the model lets calls pass as text, and a run would learn nothing from a policy that does
everything right. So a turn with reasoning (where the format opens it), text and two calls of the harness's own shape is
written twice: by the checkpoint's chat template, where it can write calls, and by the renderer itself. Both must come
back the same, from the whole turn and told piece by piece. Values are those that break parsers: line breaks, quotes,
backslashes, other scripts, digits that are a text, nested objects, numbers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.tokens.renderer import CannotRender, ParsedTurn, Renderer, Shape, Tools

Write = Callable[[Sequence[Mapping[str, Any]], Tools], Sequence[int]]
"""Messages and tools to the ids of a prompt that lets the assistant speak. Raises what it likes."""

_NASTY = 'first\n  "second" \\n \'third\'\t<b>&amp; {"é": "日本 😀"}'
_SHAPE = {
    "text": _NASTY,
    "digits": "5",
    "number": 7,
    "share": 0.25,
    "flag": True,
    "list": [1, "two", {"three": None}],
    "nested": {"a": {"b": [_NASTY]}},
}
_SAID, _THOUGHT = "I look first.", "One moment."
_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def misfit(render: Write, taught: Write) -> str:
    """What stands around a user's text in the renderer's prompt and not in the model's own, in one line; empty when all
    is the same. One of the two may say more before it (a system message of its own) and after it (thoughts that are
    closed at once)."""
    try:
        own, made = _around(taught), _around(render)
    except Exception:  # a template that has no place for a user's message alone shows nothing
        return ""
    if not own or not made or (_ends_alike(own[0], made[0]) and _ends_alike(own[1][::-1], made[1][::-1])):
        return ""
    return "its prompts have another form than those of the checkpoint's chat template"


def _around(write: Write) -> tuple[list[int], list[int]] | None:
    """Ids before and after the text of a prompt's only message; None where the text leaves no trace."""
    one, other = (list(write([{"role": "user", "content": text}], ())) for text in ("alpha", "question"))
    if one == other:
        return None
    before, after = _common(one, other), _common(one[::-1], other[::-1])
    return one[:before], one[len(one) - after :]


def _ends_alike(one: Sequence[int], other: Sequence[int]) -> bool:
    shared = min(len(one), len(other))
    return list(one[len(one) - shared :]) == list(other[len(other) - shared :]) and bool(one) == bool(other)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def misread(renderer: Renderer, write: Write, shape: Shape, thinks: Callable[[list[int]], bool]) -> str:
    """What does not come back, in one line; empty when all does. `thinks`: whether a prompt opens the reasoning."""
    first = {key: _harden(value) for key, value in shape.arguments.items()}
    calls = (_call(shape.name, first, 0), _call(shape.name, _SHAPE, 1))
    tools = (_tool(shape.name, {**_SHAPE, **first}),)
    try:
        opening = list(write(_conversation((), ""), tools))
        thought = _THOUGHT if thinks(opening) else ""
        whole = list(write(_conversation(calls, thought), tools))
    except CannotRender as refused:
        return f"no calls of `{shape.name}` can be written: {refused}"
    except Exception:  # a template that has no place for this conversation shows nothing
        return ""
    common = _common(opening, whole)
    stops = frozenset(renderer.stop_token_ids)
    close = next((at for at in range(common, len(whole)) if whole[at] in stops), None)
    if close is None:
        return f"no stop token ends a turn with calls of `{shape.name}`"
    prompt, turn = np.asarray(whole[:common], dtype=np.int32), np.asarray(whole[common : close + 1], dtype=np.int32)
    read = renderer.parse(prompt, turn, tools)
    problem = _difference(read, calls, thought, shape.name)
    follower = renderer.follow(prompt, tools, calls=True)
    if not problem and follower is not None:
        for token in turn.tolist():
            follower.feed([token])
        problem = _difference(follower.finish(read)[0], calls, thought, shape.name)
    return problem


def writes_calls(write: Write, tool: str) -> bool:
    """Whether it can write this tool's calls at all."""
    try:
        made = [list(write(_conversation((_call(tool, {"a": value}, 0),), ""), ())) for value in ("x", "y")]
    except Exception:  # templates raise what they like on messages that they do not know
        return False
    return made[0] != made[1]


def _difference(read: ParsedTurn, calls: Sequence[Mapping[str, Any]], reasoning: str, name: str) -> str:
    if len(read.calls) != len(calls):
        return f"of {len(calls)} calls of `{name}` its parser reads {len(read.calls)}"
    for call, made in zip(read.calls, calls, strict=True):
        given = made["function"]
        if call.name != given["name"]:
            return f"calls of `{name}` are read as calls of `{' '.join(call.name.split())[:40]}`"
        if not call.well_formed:
            return f"calls of `{name}` are read as malformed"
        try:
            same = json.loads(call.arguments) == given["arguments"]
        except ValueError:
            same = False
        if not same:
            return f"the arguments of `{name}` come back changed"
    if read.content.strip() != _SAID:
        return f"the text before calls of `{name}` comes back changed"
    if read.reasoning.strip() != reasoning.strip():
        return f"the reasoning before calls of `{name}` comes back changed"
    return ""


def _conversation(calls: Sequence[Mapping[str, Any]], reasoning: str) -> list[Mapping[str, Any]]:
    """With calls: the user's message, the turn that makes them, their results."""
    chat: list[Mapping[str, Any]] = [{"role": "user", "content": "Begin."}]
    if calls:
        turn = {"role": "assistant", "content": _SAID, "tool_calls": list(calls)}
        chat.append(turn | {"reasoning_content": reasoning} if reasoning else turn)
        chat += [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
    return chat


def _call(name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": dict(arguments)}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def _tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    properties = {key: {"type": _TYPES.get(type(value), "object")} for key, value in arguments.items()}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


def _harden(value: Any) -> Any:
    """A harness's own value; a text with what breaks parsers in it."""
    return f"{value}{_NASTY}" if isinstance(value, str) else value
