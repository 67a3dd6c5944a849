"""OpenAI Chat Completions: requests in, responses and event streams out. Pure translation, no I/O.

Invariant: the streamed and the unstreamed wording of one `Completion` are the same message. Refused, with the
protocol's own 400 that names field and reason: whatever would change the answer and cannot be honoured (several
choices, stop sequences, forced tools, response formats, other modalities, unknown parameters). Sampling parameters are
the proxy's own; a client's wishes are accepted and recorded with the request, and not obeyed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from engine.wire.json_body import decode_object
from engine.wire.messages import ChatRequest, Completion, Message, Refusal, Role, ToolCall, Usage

NAME = "openai_chat"

_WISHES = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    | {"reasoning_effort", "verbosity"}
)
"""Sampling and thinking belong to the experiment's configuration."""
_WITHOUT_EFFECT = frozenset(
    {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "logprobs", "max_tokens"}
    | {"max_completion_tokens", "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
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


def parse_request(body: bytes) -> ChatRequest:
    """Validate a request body. Raises Refusal."""
    data = decode_object(body)
    _check_parameters(data)
    stream = _boolean(data, "stream")
    options = _stream_options(data, stream)
    return ChatRequest(
        model=_model(data),
        messages=_messages(data.get("messages")),
        tools=_tools(data),
        max_tokens=_max_tokens(data),
        stream=stream,
        include_usage=options,
        logprobs=_boolean(data, "logprobs"),
    )


# ---------------------------------------------------------------- parameters


def _check_parameters(data: dict[str, Any]) -> None:
    for name, value in data.items():
        if value is None or name in _WITHOUT_EFFECT or name in _WISHES:
            continue
        if name not in _ONLY:
            raise Refusal(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
        allowed, reason = _ONLY[name]
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            raise _unsupported(name, f"Unsupported value for '{name}': {reason}.")


def _unsupported(param: str, message: str) -> Refusal:
    return Refusal(message, param=param, code="unsupported_value")


def _wrong_type(param: str, wanted: str) -> Refusal:
    return Refusal(f"Invalid type for '{param}': expected {wanted}.", param=param, code="invalid_type")


def _boolean(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong_type(name, "a boolean")
    return value


def _model(data: dict[str, Any]) -> str:
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise Refusal("you must provide a model parameter", param="model", code="missing_required_parameter")
    return model


def _max_tokens(data: dict[str, Any]) -> int | None:
    bounds = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, "an integer")
        if value < 1:
            raise Refusal(f"Invalid '{name}': integer below minimum value, expected at least 1.", param=name)
        bounds.append(value)
    return min(bounds) if bounds else None


def _stream_options(data: dict[str, Any], stream: bool) -> bool:
    """Whether usage is asked for."""
    options = data.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise _wrong_type("stream_options", "an object")
    if not stream:
        raise Refusal(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    unknown = set(options) - {"include_usage", "include_obfuscation"}
    if unknown:
        name = f"stream_options.{min(unknown)}"
        raise Refusal(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    _boolean(options, "include_obfuscation")
    return _boolean(options, "include_usage")


def _tools(data: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    tools = data.get("tools")
    choice = data.get("tool_choice")
    if tools is None:
        tools = []
    if not isinstance(tools, list):
        raise _wrong_type("tools", "an array")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    if choice not in (None, "auto", "none"):
        raise _unsupported("tool_choice", "Unsupported value for 'tool_choice': a call cannot be forced; use 'auto'.")
    return () if choice == "none" else tuple(tools)


def _check_tool(tool: Any, where: str) -> None:
    if not isinstance(tool, dict):
        raise _wrong_type(where, "an object")
    if tool.get("type") != "function":
        raise _unsupported(f"{where}.type", f"Unsupported value for '{where}.type': only 'function' tools exist here.")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _wrong_type(f"{where}.function", "an object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise _wrong_type(f"{where}.function.name", "a non-empty string")
    if not isinstance(function.get("description", ""), str | None):
        raise _wrong_type(f"{where}.function.description", "a string")
    if not isinstance(function.get("parameters", {}), dict | None):
        raise _wrong_type(f"{where}.function.parameters", "an object")
    try:
        orjson.dumps(tool)
    except TypeError:
        raise Refusal(f"Invalid '{where}': the schema is nested too deeply.", param=where) from None


# ---------------------------------------------------------------- messages


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise _wrong_type("messages", "an array")
    if not value:
        raise Refusal("Invalid 'messages': empty array, expected at least one message.", param="messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise _wrong_type(where, "an object")
    role = item.get("role")
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
            raise _wrong_type(f"{where}.content", "a string or an array of parts")
        return Message(role=role, text=_text(item["content"], f"{where}.content"))

    return build


def _tool_result(item: dict[str, Any], where: str) -> Message:
    call = item.get("tool_call_id")
    if not isinstance(call, str) or not call:
        raise _wrong_type(f"{where}.tool_call_id", "a non-empty string")
    return Message(role="tool", text=_text(item.get("content"), f"{where}.content"), tool_call_id=call)


def _assistant(item: dict[str, Any], where: str) -> Message:
    for name in ("function_call", "audio"):
        if item.get(name) is not None:
            raise _unsupported(f"{where}.{name}", f"Unsupported field '{where}.{name}'.")
    calls = item.get("tool_calls")
    if calls is None:
        calls = []
    if not isinstance(calls, list):
        raise _wrong_type(f"{where}.tool_calls", "an array")
    text = _text(item.get("content"), f"{where}.content")
    refusal = item.get("refusal")
    if not text and isinstance(refusal, str):
        text = refusal
    return Message(
        role="assistant",
        text=text,
        reasoning=_reasoning(item),
        tool_calls=tuple(_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)),
    )


def _reasoning(item: dict[str, Any]) -> str:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(item.get(name), str):
            return str(item[name])
    return ""


def _tool_call(call: Any, where: str) -> ToolCall:
    if not isinstance(call, dict):
        raise _wrong_type(where, "an object")
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise _unsupported(where, f"Unsupported tool call in '{where}': only 'function' calls exist here.")
    for name, value in (
        ("id", call.get("id")),
        ("name", function.get("name")),
        ("arguments", function.get("arguments")),
    ):
        if not isinstance(value, str):
            raise _wrong_type(f"{where}.{name}", "a string")
    return ToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])


def _text(content: Any, where: str) -> str:
    """Text parts joined by newlines, blank parts dropped: a string and its one-part form are the same text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong_type(where, "a string or an array of parts")
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return "\n".join(part for part in parts if part)


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise _wrong_type(where, "an object")
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise _unsupported(
            f"{where}.type", f"Unsupported content part {kind!r} in '{where}': the model reads text only."
        )
    if not isinstance(part.get(kind), str):
        raise _wrong_type(f"{where}.{kind}", "a string")
    return str(part[kind])


_BY_ROLE: dict[str, Callable[[dict[str, Any], str], Message]] = {
    "system": _plain("system"),
    "developer": _plain("system"),
    "user": _plain("user"),
    "assistant": _assistant,
    "tool": _tool_result,
}


# ---------------------------------------------------------------- responses


def response(completion: Completion) -> dict[str, Any]:
    """The unstreamed response body."""
    reply = completion.message
    content = None if reply.tool_calls and not reply.text else reply.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(completion),
        "finish_reason": completion.finish_reason,
    }
    return _envelope(completion, "chat.completion") | {"choices": [choice], "usage": _usage(completion.usage)}


def events(completion: Completion, request: ChatRequest, piece: int) -> Iterator[bytes]:
    """The same message as server-sent events; texts are cut into pieces of at most `piece` characters."""

    def event(delta: dict[str, Any] | None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
        for choice in choices:
            choice |= more
        body = _envelope(completion, "chat.completion.chunk") | {"choices": choices}
        if request.include_usage:
            body["usage"] = _usage(completion.usage) if delta is None else None
        return b"data: " + orjson.dumps(body) + b"\n\n"

    message = completion.message
    opening = None if message.tool_calls and not message.text else ""
    yield event({"role": "assistant", "content": opening, "refusal": None}, logprobs=_logprobs(completion))
    for text in _pieces(message.reasoning, piece):
        yield event({"reasoning_content": text})
    for text in _pieces(message.text, piece):
        yield event({"content": text})
    for index, call in enumerate(message.tool_calls):
        start = {"index": index} | _call(replace(call, arguments=""))
        yield event({"tool_calls": [start]})
        for text in _pieces(call.arguments, piece):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    yield event({}, finish_reason=completion.finish_reason)
    if request.include_usage:
        yield event(None)
    yield b"data: [DONE]\n\n"


def error(refusal: Refusal) -> dict[str, Any]:
    """The protocol's error object."""
    return {
        "error": {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.code},
    }


def context_overflow(limit: int, asked: int) -> Refusal:
    """The error that clients take for a full context window: never retried, may start a compaction."""
    return Refusal(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {asked} tokens. "
        "Please reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )


def models(names: tuple[str, ...]) -> dict[str, Any]:
    """The body of `GET /v1/models`."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lego-rl"}


def _envelope(completion: Completion, kind: str) -> dict[str, Any]:
    return {"id": completion.id, "object": kind, "created": completion.created, "model": completion.model}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _logprobs(completion: Completion) -> dict[str, Any] | None:
    if completion.logprobs is None:
        return None
    content = [
        {
            "token": token.text,
            "logprob": token.logprob,
            "bytes": None if "�" in token.text else list(token.text.encode()),
            "top_logprobs": [],
        }
        for token in completion.logprobs
    ]
    return {"content": content, "refusal": None}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))
