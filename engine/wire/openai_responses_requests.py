"""OpenAI Responses: request bodies to `ChatRequest`. Pure translation, no I/O.

Refused, with the protocol's own 400 that names field and reason: whatever would change the answer and cannot be
honoured (stored responses and conversations, background work, output formats, truncation, forced tools, tools that are
no functions, unknown parameters). A client's wishes for sampling and thinking are recorded and not obeyed.

Three things are taken that only look like more than a function call, for Codex sends them to a model that it does not
know. `parallel_tool_calls: false`: Codex runs any number of calls, one after the other; the response says `true`, which
is how it was sampled. `include: ["reasoning.encrypted_content"]`: always given. Namespaces of functions (its
sub-agents, MCP servers): each function is a tool of its own. What Codex can leave out is refused and must be switched
off there: `web_search`, `image_generation`, `tool_search`, and `custom` tools (a free-form `apply_patch`), whose text
follows a grammar that nothing here would keep to.
"""

import re
from typing import Any

from engine.wire.json_body import decode_object
from engine.wire.messages import ChatRequest, Message, Refusal
from engine.wire.openai_fields import (
    SHOWN,
    array,
    boolean,
    check_depth,
    check_function,
    check_only_known,
    check_parameters,
    check_wishes,
    mapping,
    model_name,
    named,
    positive,
    shown,
    unsupported,
    wrong_type,
)
from engine.wire.openai_responses_echo import join_name
from engine.wire.openai_responses_history import messages

_KNOWN = frozenset(
    {"model", "input", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_output_tokens"}
    | {"include", "reasoning", "text", "parallel_tool_calls", "temperature", "top_p"}
    | {"user", "metadata", "client_metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
    | {"prompt_cache_options"}
)
"""Read elsewhere, wishes that sampling does not follow, or labels that no answer depends on."""
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((False,), "responses are not stored for retrieval"),
    "previous_response_id": ((), "responses are not stored: send the whole conversation in 'input'"),
    "conversation": ((), "conversations are not stored: send the whole conversation in 'input'"),
    "prompt": ((), "prompts are not stored: send 'instructions' and 'input'"),
    "background": ((False,), "a response is made while its client waits"),
    "truncation": (("disabled",), "a conversation that does not fit is refused, never cut"),
    "context_management": (([],), "a conversation that does not fit is refused, never rewritten"),
    "max_tool_calls": ((), "there are no built-in tools to count calls of"),
    "top_logprobs": ((0,), "log-probabilities are not given in this protocol"),
    "service_tier": (("auto", "default"), "there is one service tier"),
}
"""Parameter → the values that can be honoured (null always can), and why no other."""
_INCLUDE = "reasoning.encrypted_content"
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SHOWN_OF_A_TOOL = ("description", "parameters", "output_schema")
_OF_A_TOOL = frozenset({"type", "name", "strict", "defer_loading", "async", "allowed_callers", *_SHOWN_OF_A_TOOL})


def parse_request(body: bytes) -> ChatRequest:
    """Validate a request body. Raises Refusal."""
    data = decode_object(body)
    check_parameters(data, _KNOWN, _ONLY, _unknown)
    check_wishes(data)
    stream = boolean(data, "stream")
    boolean(data, "parallel_tool_calls")
    _check_options(data, stream)
    return ChatRequest(
        model=model_name(data),
        messages=_messages(data),
        tools=_tools(data),
        max_tokens=positive(data, "max_output_tokens"),
        stream=stream,
        include_usage=True,
        logprobs=False,
    )


def _unknown(name: str) -> Refusal:
    return Refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


# ---------------------------------------------------------------- parameters


def _check_options(data: dict[str, Any], stream: bool) -> None:
    check_wishes(
        _check_fields(data, "reasoning", {"effort", "summary", "generate_summary", "context", "mode"}), "reasoning."
    )
    text = _check_fields(data, "text", {"format", "verbosity"})
    check_wishes(text, "text.")
    written = text.get("format")
    if written is not None and mapping(written, "text.format") != {"type": "text"}:
        reason = "constrained decoding is not supported"
        raise unsupported("text.format", f"Unsupported value for 'text.format': {reason}; use the type 'text'.")
    options = _check_fields(data, "stream_options", {"include_obfuscation"})
    boolean(options, "include_obfuscation", "stream_options.")
    if data.get("stream_options") is not None and not stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise Refusal(message, param="stream_options")
    include = [] if data.get("include") is None else array(data["include"], "include")
    for index, asked in enumerate(include):
        if asked != _INCLUDE:
            message = f"Unsupported value {shown(asked)} in 'include': only '{_INCLUDE}' can be given."
            raise unsupported(f"include[{index}]", message)


def _check_fields(data: dict[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    if data.get(name) is None:
        return {}
    fields = mapping(data[name], name)
    unknown = sorted(field for field in set(fields) - known if fields[field] is not None)
    if unknown:
        raise _unknown(f"{name}.{unknown[0][:SHOWN]}")
    return fields


def _messages(data: dict[str, Any]) -> tuple[Message, ...]:
    given = data.get("input")
    if given is None:
        raise Refusal("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong_type("input", "a string or an array of items")
    if not given:
        raise Refusal("Invalid 'input': empty array, expected at least one item.", param="input")
    instructions = data.get("instructions")
    if not isinstance(instructions, str | None):
        raise wrong_type("instructions", "a string")
    first = (Message(role="system", text=instructions),) if instructions else ()
    return first + messages(given, "input")


# ---------------------------------------------------------------- tools


def _tools(data: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    choice = data.get("tool_choice")
    tools: list[dict[str, Any]] = []
    for index, tool in enumerate([] if data.get("tools") is None else array(data["tools"], "tools")):
        tools += _tool(tool, f"tools[{index}]")
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "Unsupported value for 'tool_choice': a call cannot be forced; use 'auto'.")
    return () if choice == "none" else tuple(tools)


def _tool(tool: Any, where: str) -> list[dict[str, Any]]:
    kind = mapping(tool, where).get("type")
    if kind == "function":
        return [_function(tool, where)]
    if kind == "namespace":
        return _namespace(tool, where)
    message = f"Unsupported tool type {shown(kind)} in '{where}': only functions can be called; leave it out."
    raise unsupported(f"{where}.type", message)


def _namespace(tool: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Its functions; what it says of itself is said before its first."""
    namespace = _name(tool, where)
    check_only_known(tool, frozenset({"type", "name", "description", "tools"}), where)
    about = tool.get("description")
    if not isinstance(about, str | None):
        raise wrong_type(f"{where}.description", "a string")
    functions = []
    for index, inner in enumerate(array(tool.get("tools"), f"{where}.tools")):
        place = f"{where}.tools[{index}]"
        if mapping(inner, place).get("type") != "function":
            message = f"Unsupported tool type {shown(inner.get('type'))} in '{place}': only functions can be called."
            raise unsupported(f"{place}.type", message)
        functions.append(_function(inner, place, namespace))
    if about and functions:
        first = functions[0]["function"]
        first["description"] = "\n\n".join(filter(None, (about, first.get("description"))))
    return functions


def _function(tool: dict[str, Any], where: str, namespace: str = "") -> dict[str, Any]:
    """The shared form. Whether a schema is strict is no matter of the model's."""
    check_function(tool, where)
    check_only_known(tool, _OF_A_TOOL, where)
    if tool.get("output_schema") is not None:
        mapping(tool["output_schema"], f"{where}.output_schema")
    if boolean(tool, "defer_loading", f"{where}."):
        reason = "a tool is shown to the model from the start or not at all"
        raise unsupported(f"{where}.defer_loading", f"Unsupported value for '{where}.defer_loading': {reason}.")
    if boolean(tool, "async", f"{where}."):
        reason = "a turn ends with its calls, and the next one begins with their outputs"
        raise unsupported(f"{where}.async", f"Unsupported value for '{where}.async': {reason}.")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        message = f"Unsupported value for '{where}.allowed_callers': the server runs no programs that could call it."
        raise unsupported(f"{where}.allowed_callers", message)
    function = {"name": join_name(namespace, _name(tool, where))}
    function |= {name: tool[name] for name in _SHOWN_OF_A_TOOL if tool.get(name) is not None}
    shared = {"type": "function", "function": function}
    check_depth(shared, where)
    return shared


def _name(tool: dict[str, Any], where: str) -> str:
    name = named(tool, "name", where)
    if not _NAME.fullmatch(name):
        pattern = f"'^{_NAME.pattern}$'"
        message = f"Invalid '{where}.name': string does not match pattern. Expected a string that matches {pattern}."
        raise Refusal(message, param=f"{where}.name", code="invalid_value")
    return name
