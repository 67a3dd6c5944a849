"""Anthropic Messages, requests: bodies of `/v1/messages` and `/v1/messages/count_tokens` become a `ChatRequest`.

Invariant: turns that the protocol takes for one are one message here. Neighbours of one role are joined, a string and
its one-block form are the same text, and a user turn is its tool results in the order given, then its text. Cache marks
are not read, wherever they stand. Refused, naming field and reason: whatever would change the answer and cannot be
honoured (stop sequences, forced or exclusive calls, server tools, constrained output, prefilled answers, edits of the
context, images and documents, unknown parameters). Sampling and thinking are the experiment's own; a client's wishes
are accepted and recorded with the request, and not obeyed.
"""

import re
from collections.abc import Callable
from typing import Any

import orjson

from engine.wire.json_body import decode_object
from engine.wire.messages import ChatRequest, Message, Refusal, Role, ToolCall, fits_a_body

_EXTRA = "Extra inputs are not permitted"
_REQUIRED = "Field required"
_STRING, _OBJECT, _ARRAY = (f"Input should be a valid {kind}" for kind in ("string", "object", "array"))

_READ = frozenset({"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stream"})
_LABELS = frozenset({"cache_control", "user_profile_id", "workspace_id", "diagnostics"})
"""No answer depends on them."""
_SAMPLED_ONLY = frozenset(
    {"max_tokens", "stream", "metadata", "temperature", "top_p", "top_k", "stop_sequences", "service_tier", "container"}
)
"""What counting tokens does not take."""
_NO_EDITS: tuple[Any, ...] = ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "stop_sequences": (([],), "stop sequences are not supported: a turn ends at the model's own stop token"),
    "context_management": (_NO_EDITS, "the server does not edit the context: the client's history is read as it is"),
    "mcp_servers": (([],), "the server runs no tools"),
    "container": ((), "the server runs no tools"),
    "service_tier": (("auto", "standard_only"), "there is one service tier"),
    "speed": (("standard",), "there is one speed"),
    "inference_geo": ((), "there is one place of inference"),
    "output_format": ((), "constrained decoding is not supported"),
}
"""Parameter → the values that can be honoured (null always can), and why no other."""
_THINKING = ("disabled", "enabled", "adaptive", "between_tools")
_TOOL_FIELDS = frozenset(
    {"type", "name", "description", "input_schema", "cache_control", "eager_input_streaming"}
    | {"strict", "defer_loading", "allowed_callers", "input_examples"}
)
_TOOL_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "strict": ((False,), "constrained decoding is not supported"),
    "defer_loading": ((False,), "there is no tool search: every tool is shown to the model"),
    "allowed_callers": ((["direct"],), "the server runs no tools"),
    "input_examples": (([],), "the model is shown name, description and schema; put examples into the description"),
}

_TELLS = re.compile(r"error|fail|exit code|exception|traceback", re.IGNORECASE)
"""What a tool's result says when it says that something went wrong."""

_Block = tuple[dict[str, Any], str]
"""A content block and where it stands."""


def parse_request(body: bytes) -> ChatRequest:
    """Validate the body of a request for an answer. Raises Refusal."""
    data = decode_object(body)
    _check_parameters(data)
    return _request(data, max_tokens=_max_tokens(data), stream=_boolean(data, "stream"))


def parse_count(body: bytes) -> ChatRequest:
    """Validate the body of a request for a count of its tokens. Raises Refusal."""
    data = decode_object(body)
    for name in sorted(_SAMPLED_ONLY & data.keys()):
        raise _refusal(name, f"{_EXTRA} when counting tokens")
    _check_parameters(data)
    return _request(data, max_tokens=None, stream=False)


def _request(data: dict[str, Any], *, max_tokens: int | None, stream: bool) -> ChatRequest:
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise _refusal("model", _REQUIRED if model is None else "Input should be a non-empty string")
    return ChatRequest(
        model=model,
        messages=_system(data.get("system")) + _messages(data.get("messages")),
        tools=_tools(data.get("tools"), data.get("tool_choice")),
        max_tokens=max_tokens,
        stream=stream,
        include_usage=True,
        logprobs=False,
    )


def _refusal(where: str, reason: str) -> Refusal:
    return Refusal(f"{where}: {reason}", param=where)


# ---------------------------------------------------------------- parameters


def _check_parameters(data: dict[str, Any]) -> None:
    for name, value in data.items():
        if name not in _KNOWN:
            raise _refusal(name, _EXTRA)
        if value is None:
            continue
        if name in _ONLY:
            _check_choice(name, value, _ONLY[name])
        elif name in _CHECKS:
            _CHECKS[name](value, name)


def _check_choice(where: str, value: Any, choice: tuple[tuple[Any, ...], str]) -> None:
    allowed, reason = choice
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise _refusal(where, f"Unsupported value: {reason}")


def _check_number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refusal(where, "Input should be a valid number")


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _refusal(where, _OBJECT)


def _check_thinking(value: Any, where: str) -> None:
    _check_object(value, where)
    if value.get("type") not in _THINKING:
        raise _refusal(f"{where}.type", f"Input should be one of {', '.join(map(repr, _THINKING))}")


def _check_output(value: Any, where: str) -> None:
    """Effort is a wish; a format is a promise."""
    _check_object(value, where)
    if value.get("format") is not None:
        raise _refusal(f"{where}.format", "Unsupported value: constrained decoding is not supported")
    for name in sorted(value.keys() - {"effort", "format"}):
        raise _refusal(f"{where}.{name}", _EXTRA)


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    "temperature": _check_number,
    "top_p": _check_number,
    "top_k": _check_number,
    "thinking": _check_thinking,
    "output_config": _check_output,
    "metadata": _check_object,
}
"""Wishes and labels that have a form."""
_KNOWN = _READ | _LABELS | _ONLY.keys() | _CHECKS.keys()


def _boolean(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise _refusal(name, "Input should be a valid boolean")
    return bool(value)


def _max_tokens(data: dict[str, Any]) -> int:
    value = data.get("max_tokens")
    if value is None:
        raise _refusal("max_tokens", _REQUIRED)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal("max_tokens", "Input should be a valid integer")
    if value < 1:
        raise _refusal("max_tokens", "Input should be greater than or equal to 1")
    return value


# ---------------------------------------------------------------- tools


def _tools(tools: Any, choice: Any) -> tuple[dict[str, Any], ...]:
    """In OpenAI's form, which renderers take; none when the client forbids calls."""
    if tools is not None and not isinstance(tools, list):
        raise _refusal("tools", _ARRAY)
    read = [_tool(tool, f"tools.{index}") for index, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in read]
    if len(set(names)) < len(names):
        raise _refusal("tools", "Tool names must be unique")
    return () if _forbids_calls(choice) else tuple(read)


def _forbids_calls(choice: Any) -> bool:
    if choice is None:
        return False
    _check_object(choice, "tool_choice")
    kind = choice.get("type")
    if kind not in ("auto", "none"):
        raise _refusal("tool_choice.type", "Unsupported value: a call cannot be forced; use 'auto' or 'none'")
    if choice.get("disable_parallel_tool_use") not in (None, False):
        reason = "Unsupported value: the number of tool calls in a turn is the model's choice"
        raise _refusal("tool_choice.disable_parallel_tool_use", reason)
    return bool(kind == "none")


def _tool(tool: Any, where: str) -> dict[str, Any]:
    _check_object(tool, where)
    if tool.get("type") not in (None, "custom"):
        reason = "only tools with an input_schema of the client's own exist here, none that the server runs or knows"
        raise _refusal(f"{where}.type", f"Unsupported value {tool['type']!r}: {reason}")
    for name, value in tool.items():
        if name not in _TOOL_FIELDS:
            raise _refusal(f"{where}.{name}", _EXTRA)
        if value is not None and name in _TOOL_ONLY:
            _check_choice(f"{where}.{name}", value, _TOOL_ONLY[name])
    function: dict[str, Any] = {"name": _named(tool, "name", where)}
    if tool.get("description") is not None:
        if not isinstance(tool["description"], str):
            raise _refusal(f"{where}.description", _STRING)
        function["description"] = tool["description"]
    if not isinstance(tool.get("input_schema"), dict):
        raise _refusal(f"{where}.input_schema", _OBJECT if "input_schema" in tool else _REQUIRED)
    _dump(tool["input_schema"], f"{where}.input_schema")
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


def _named(item: dict[str, Any], name: str, where: str) -> str:
    """A string that says which one is meant."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise _refusal(f"{where}.{name}", "Input should be a non-empty string" if name in item else _REQUIRED)
    return value


def _dump(value: dict[str, Any], where: str) -> str:
    if not fits_a_body(value):
        raise _refusal(where, "Input is nested too deeply or holds an integer of more than 64 bits")
    return orjson.dumps(value).decode()


# ---------------------------------------------------------------- messages


def _system(value: Any) -> tuple[Message, ...]:
    if value is None:
        return ()
    text = _joined([_text(block, where, "system") for block, where in _blocks(value, "system")])
    return (Message(role="system", text=text),) if text else ()


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise _refusal("messages", _REQUIRED if value is None else _ARRAY)
    if not value:
        raise _refusal("messages", "at least one message is required")
    turns: list[tuple[str, list[_Block]]] = []
    for index, item in enumerate(value):
        where = f"messages.{index}"
        _check_object(item, where)
        role = item.get("role")
        if not isinstance(role, str) or role not in _BY_ROLE:
            raise _refusal(f"{where}.role", f"Input should be one of {', '.join(map(repr, _BY_ROLE))}")
        if item.get("content") is None:
            raise _refusal(f"{where}.content", _REQUIRED)
        blocks = _blocks(item["content"], f"{where}.content")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    if turns[-1][0] == "assistant":
        reason = "a prefilled assistant message is not supported; the conversation must end with a user message"
        raise _refusal("messages", reason)
    return tuple(message for role, blocks in turns for message in _BY_ROLE[role](blocks))


def _blocks(content: Any, where: str) -> list[_Block]:
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise _refusal(where, "Input should be a valid string or array")
    for index, block in enumerate(content):
        _check_object(block, f"{where}.{index}")
        _named(block, "type", f"{where}.{index}")
    return [(block, f"{where}.{index}") for index, block in enumerate(content)]


def _text(block: dict[str, Any], where: str, role: str) -> str:
    """Of a text block; any other has no place there."""
    if block["type"] != "text":
        raise _misplaced(block, where, role)
    return _string(block, "text", where)


def _misplaced(block: dict[str, Any], where: str, role: str) -> Refusal:
    reason = "the model reads text, calls and their results only"
    return _refusal(f"{where}.type", f"Unsupported block {block['type']!r} in {role} content: {reason}")


def _string(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _refusal(f"{where}.{name}", _STRING if name in block else _REQUIRED)
    return value


def _joined(texts: list[str]) -> str:
    return "\n".join(text for text in texts if text)


def _plain(role: Role) -> Callable[[list[_Block]], list[Message]]:
    def build(blocks: list[_Block]) -> list[Message]:
        return [Message(role=role, text=_joined([_text(block, where, role) for block, where in blocks]))]

    return build


def _user(blocks: list[_Block]) -> list[Message]:
    results, texts = [], []
    for block, where in blocks:
        if block["type"] == "tool_result":
            results.append(_tool_result(block, where))
        else:
            texts.append(_text(block, where, "user"))
    said = _joined(texts)
    return results if results and not said else [*results, Message(role="user", text=said)]


def _tool_result(block: dict[str, Any], where: str) -> Message:
    content, failed = block.get("content"), block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise _refusal(f"{where}.is_error", "Input should be a valid boolean")
    parts = [] if content is None else _blocks(content, f"{where}.content")
    text = _joined([_text(part, there, "tool_result") for part, there in parts])
    return Message(
        role="tool",
        text=_failure(text) if failed else text,
        tool_call_id=_named(block, "tool_use_id", where),
        is_error=bool(failed),
    )


def _failure(text: str) -> str:
    """The mark has no place of its own in a prompt: a text that does not tell of the failure is given a word for it."""
    if _TELLS.search(text):
        return text
    return f"Error: {text}" if text.strip() else "Error"


def _assistant(blocks: list[_Block]) -> list[Message]:
    """Texts are joined without a border: none was sampled."""
    text, reasoning, calls = "", "", []
    for block, where in blocks:
        if block["type"] == "thinking":
            reasoning += _string(block, "thinking", where)
        elif block["type"] == "redacted_thinking":
            continue  # Written by another server, in its own cipher: nothing that this model could read.
        elif block["type"] == "tool_use":
            calls.append(_tool_use(block, where))
        else:
            text += _text(block, where, "assistant")
    return [Message(role="assistant", text=text, reasoning=reasoning, tool_calls=tuple(calls))]


def _tool_use(block: dict[str, Any], where: str) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict):
        raise _refusal(f"{where}.input", _OBJECT if "input" in block else _REQUIRED)
    arguments = _dump(given, f"{where}.input")
    return ToolCall(id=_named(block, "id", where), name=_named(block, "name", where), arguments=arguments)


_BY_ROLE: dict[str, Callable[[list[_Block]], list[Message]]] = {
    "user": _user,
    "assistant": _assistant,
    "system": _plain("system"),
}
