"""OpenAI Chat Completions: request bodies to `ChatRequest`. Pure translation, no I/O.

Refused, with the protocol's own 400 that names field and reason: whatever would change the answer and cannot be
honoured (several choices, stop sequences, forced tools, response formats, other modalities, unknown parameters).
Sampling parameters are the proxy's own; a client's wishes are accepted and recorded with the request, and not obeyed.
"""

from collections.abc import Callable
from typing import Any

from engine.wire.json_body import decode_object
from engine.wire.messages import ChatRequest, Message, Refusal, Role, ToolCall
from engine.wire.openai_fields import (
    SHOWN,
    array,
    boolean,
    check_depth,
    check_function,
    check_parameters,
    check_wishes,
    mapping,
    model_name,
    named,
    positive,
    text,
    unsupported,
    wrong_type,
)

_WISHES = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    | {"reasoning_effort", "verbosity"}
)
"""Sampling and thinking belong to the experiment's configuration."""
_WITHOUT_EFFECT = frozenset(
    {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "logprobs", "max_tokens"}
    | {"max_completion_tokens", "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"prompt_cache_options"}
)
"""Read elsewhere, or labels that no answer depends on."""
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "one choice is sampled per request"),
    "stop": (("", []), "stop sequences are not supported: a turn ends at the model's own stop token"),
    "top_logprobs": ((0,), "only the log-probability of the sampled token is known"),
    "response_format": (({"type": "text"},), "constrained decoding is not supported"),
    "logit_bias": (({},), "biased sampling is not supported"),
    "parallel_tool_calls": ((True,), "the number of tool calls in a turn is the model's choice"),
    "modalities": ((["text"],), "only text is supported"),
    "store": ((False,), "responses are not stored for retrieval"),
    "service_tier": (("auto", "default"), "there is one service tier"),
    "functions": (([],), "deprecated: use `tools`"),
    "function_call": (("auto", "none"), "deprecated: use `tool_choice`"),
}
"""Parameter → the values that can be honoured (null always can), and why no other."""
_MARK = "cache_control"
_PARTS = {"text": "text", "refusal": "refusal"}


def parse_request(body: bytes) -> ChatRequest:
    """Validate a request body. Raises Refusal."""
    data = decode_object(body)
    check_parameters(data, _WISHES | _WITHOUT_EFFECT, _ONLY, _unknown)
    check_wishes(data)
    stream = boolean(data, "stream")
    include_usage = _stream_options(data, stream)
    bounds = [positive(data, name) for name in ("max_tokens", "max_completion_tokens")]
    return ChatRequest(
        model=model_name(data),
        messages=_messages(data.get("messages")),
        tools=_tools(data),
        max_tokens=min((bound for bound in bounds if bound is not None), default=None),
        stream=stream,
        include_usage=include_usage,
        logprobs=boolean(data, "logprobs"),
    )


# ---------------------------------------------------------------- parameters


def _unknown(name: str) -> Refusal:
    return Refusal(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")


def _stream_options(data: dict[str, Any], stream: bool) -> bool:
    """Whether usage is asked for."""
    options = data.get("stream_options")
    if options is None:
        return False
    mapping(options, "stream_options")
    if not stream:
        raise Refusal(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    unknown = set(options) - {"include_usage", "include_obfuscation"}
    if unknown:
        raise _unknown(f"stream_options.{min(unknown)[:SHOWN]}")
    boolean(options, "include_obfuscation", "stream_options.")
    return boolean(options, "include_usage", "stream_options.")


def _tools(data: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    choice = data.get("tool_choice")
    tools = [] if data.get("tools") is None else array(data["tools"], "tools")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "Unsupported value for 'tool_choice': a call cannot be forced; use 'auto'.")
    return () if choice == "none" else tuple(map(_unmarked, tools))


def _unmarked(tool: dict[str, Any]) -> dict[str, Any]:
    """Without marks of a client's cache, which move from request to request and are nothing that the model is shown."""
    bare = {key: value for key, value in tool.items() if key != _MARK}
    return bare | {"function": {key: value for key, value in tool["function"].items() if key != _MARK}}


def _check_tool(tool: Any, where: str) -> None:
    if mapping(tool, where).get("type") != "function":
        raise unsupported(f"{where}.type", f"Unsupported value for '{where}.type': only 'function' tools exist here.")
    check_function(mapping(tool.get("function"), f"{where}.function"), f"{where}.function")
    check_depth(tool, where)


# ---------------------------------------------------------------- messages


def _messages(value: Any) -> tuple[Message, ...]:
    if not array(value, "messages"):
        raise Refusal("Invalid 'messages': empty array, expected at least one message.", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(item: Any, where: str) -> Message:
    role = mapping(item, where).get("role")
    build = _BY_ROLE.get(role) if isinstance(role, str) else None
    if build is None:
        raise Refusal(
            f"Invalid value for '{where}.role': expected one of {', '.join(map(repr, _BY_ROLE))}.",
            param=f"{where}.role",
            code="invalid_value",
        )
    return build(item, where)


def _plain(role: Role) -> Callable[[dict[str, Any], str], Message]:
    def build(item: dict[str, Any], where: str) -> Message:
        if item.get("content") is None:
            raise wrong_type(f"{where}.content", "a string or an array of parts")
        if item.get("name") not in (None, ""):
            reason = "the model's format has no place for a speaker's name; say it in the content"
            raise unsupported(f"{where}.name", f"Unsupported field '{where}.name': {reason}.")
        return Message(role=role, text=_text(item, where))

    return build


def _tool_result(item: dict[str, Any], where: str) -> Message:
    call = named(item, "tool_call_id", where)
    return Message(role="tool", text=_text(item, where), tool_call_id=call)


def _assistant(item: dict[str, Any], where: str) -> Message:
    for name in ("function_call", "audio"):
        if item.get(name) is not None:
            raise unsupported(f"{where}.{name}", f"Unsupported field '{where}.{name}'.")
    calls = [] if item.get("tool_calls") is None else array(item["tool_calls"], f"{where}.tool_calls")
    said = _text(item, where)
    refusal = item.get("refusal")
    if not said and isinstance(refusal, str):
        said = refusal
    return Message(
        role="assistant",
        text=said,
        reasoning=_reasoning(item),
        tool_calls=tuple(_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)),
    )


def _reasoning(item: dict[str, Any]) -> str:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(item.get(name), str):
            return str(item[name])
    return ""


def _tool_call(call: Any, where: str) -> ToolCall:
    function = mapping(call, where).get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise unsupported(where, f"Unsupported tool call in '{where}': only 'function' calls exist here.")
    for name, value in (
        ("id", call.get("id")),
        ("name", function.get("name")),
        ("arguments", function.get("arguments")),
    ):
        if not isinstance(value, str):
            raise wrong_type(f"{where}.{name}", "a string")
    return ToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])


def _text(item: dict[str, Any], where: str) -> str:
    return text(item.get("content"), f"{where}.content", _PARTS)


_BY_ROLE: dict[str, Callable[[dict[str, Any], str], Message]] = {
    "system": _plain("system"),
    "developer": _plain("system"),
    "user": _plain("user"),
    "assistant": _assistant,
    "tool": _tool_result,
}
