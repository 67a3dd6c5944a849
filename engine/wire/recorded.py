"""Reads the bodies that were recorded of a call: what was said, which tools were offered, which calls the model made.

Refuses a protocol that it does not know. A body that lacks a part (as of a call that failed) offers or calls nothing.
"""

from typing import Any

import orjson

from engine.wire.messages import Message, ToolCall, arguments_object
from engine.wire.openai_chat import NAME, parse_request

PROTOCOLS = (NAME,)


def tools_offered(protocol: str, request: str) -> frozenset[str]:
    """Names of the tools that the model could call; empty where the client offered none or forbade calls."""
    body = _body(protocol, request)
    if body.get("tool_choice") == "none":
        return frozenset()
    return frozenset(str(tool["function"]["name"]) for tool in body.get("tools") or ())


def messages_sent(protocol: str, request: str) -> tuple[Message, ...]:
    """The whole history that the client sent. Raises Refusal where it was none that the model could read."""
    _check(protocol)
    return parse_request(request.encode()).messages


def answer_made(protocol: str, response: str) -> Message:
    """The model's message, as the harness received it."""
    message = (_body(protocol, response).get("choices") or [{"message": {}}])[0]["message"]
    return Message(
        role="assistant",
        text=str(message.get("content") or ""),
        reasoning=str(message.get("reasoning_content") or ""),
        tool_calls=calls_made(protocol, response),
    )


def calls_made(protocol: str, response: str) -> tuple[ToolCall, ...]:
    """The tool calls of an answer, as the harness received them."""
    choices = _body(protocol, response).get("choices") or [{"message": {}}]
    calls = choices[0]["message"].get("tool_calls") or ()
    return tuple(
        ToolCall(id=str(call["id"]), name=str(call["function"]["name"]), arguments=str(call["function"]["arguments"]))
        for call in calls
    )


def can_run(call: ToolCall, offered: frozenset[str]) -> bool:
    """Whether a harness can run the call: it names a tool on offer and its arguments are a JSON object."""
    return call.name in offered and arguments_object(call.arguments) is not None


def _check(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}")


def _body(protocol: str, text: str) -> dict[str, Any]:
    _check(protocol)
    body: dict[str, Any] = orjson.loads(text)
    return body
