"""Reads the bodies that were recorded of an answered call: which tools were offered, which calls the model made.

Refuses a protocol that it does not know. A body that lacks a part (as of a call that failed) offers or calls nothing.
"""

from typing import Any

import orjson

from engine.wire.messages import ToolCall, arguments_object
from engine.wire.openai_chat import NAME

PROTOCOLS = (NAME,)


def tools_offered(protocol: str, request: str) -> frozenset[str]:
    """Names of the tools that the model could call; empty where the client offered none or forbade calls."""
    body = _body(protocol, request)
    if body.get("tool_choice") == "none":
        return frozenset()
    return frozenset(str(tool["function"]["name"]) for tool in body.get("tools") or ())


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


def _body(protocol: str, text: str) -> dict[str, Any]:
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}")
    body: dict[str, Any] = orjson.loads(text)
    return body
