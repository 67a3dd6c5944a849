"""Reads the bodies that were recorded of a call: what was said, which tools were offered, which calls the model made.

Refuses a protocol that it does not know. A body that lacks a part (as of a call that failed) offers or calls nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine.wire import anthropic, openai_chat, openai_responses
from engine.wire.anthropic import ANTHROPIC_MESSAGES
from engine.wire.messages import ChatRequest, Message, ToolCall, arguments_object
from engine.wire.openai_chat import OPENAI_CHAT
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.openai_responses_echo import join_name
from engine.wire.openai_responses_history import messages
from engine.wire.protocol import WireProtocol

Body = Mapping[str, Any]


def tools_offered(protocol: str, request: str) -> frozenset[str]:
    """Names of the tools that the model could call; empty where the client offered none or forbade calls."""
    body = orjson.loads(request)
    forbidden = body.get("tool_choice") in ("none", {"type": "none"})
    reader = _reader(protocol)
    return frozenset() if forbidden else reader.tools(body)


def request_sent(protocol: str, request: str) -> ChatRequest:
    """What the client sent. Raises Refusal where it was nothing that the model could read."""
    return _reader(protocol).protocol.parse(request.encode())


def messages_sent(protocol: str, request: str) -> tuple[Message, ...]:
    """The whole history that the client sent. Raises Refusal as `request_sent`."""
    return request_sent(protocol, request).messages


def answer_made(protocol: str, response: str) -> Message:
    """The model's message, as the harness received it."""
    return _reader(protocol).answer(orjson.loads(response))


def calls_made(protocol: str, response: str) -> tuple[ToolCall, ...]:
    """The tool calls of an answer, as the harness received them."""
    return answer_made(protocol, response).tool_calls


def can_run(call: ToolCall, offered: frozenset[str]) -> bool:
    """Whether a harness can run the call: it names a tool on offer and its arguments are a JSON object."""
    return call.name in offered and arguments_object(call.arguments) is not None


# ---------------------------------------------------------------- by protocol


def _chat_tools(body: Body) -> frozenset[str]:
    return frozenset(str(tool["function"]["name"]) for tool in body.get("tools") or ())


def _chat_answer(body: Body) -> Message:
    message = (body.get("choices") or [{"message": {}}])[0]["message"]
    calls = message.get("tool_calls") or ()
    return Message(
        role="assistant",
        text=str(message.get("content") or ""),
        reasoning=str(message.get("reasoning_content") or ""),
        tool_calls=tuple(
            ToolCall(
                id=str(call["id"]), name=str(call["function"]["name"]), arguments=str(call["function"]["arguments"])
            )
            for call in calls
        ),
    )


def _responses_tools(body: Body) -> frozenset[str]:
    names: list[str] = []
    for tool in body.get("tools") or ():
        if tool["type"] == "namespace":
            names += (join_name(str(tool["name"]), str(inner["name"])) for inner in tool["tools"])
        else:
            names.append(str(tool["name"]))
    return frozenset(names)


def _responses_answer(body: Body) -> Message:
    return next(iter(messages(body.get("output") or (), "output")), Message(role="assistant", text=""))


def _anthropic_tools(body: Body) -> frozenset[str]:
    return frozenset(str(tool["name"]) for tool in body.get("tools") or ())


def _anthropic_answer(body: Body) -> Message:
    text, reasoning, calls = "", "", []
    for block in body.get("content") or ():
        if block["type"] == "tool_use":
            arguments = orjson.dumps(block["input"]).decode()
            calls.append(ToolCall(id=str(block["id"]), name=str(block["name"]), arguments=arguments))
        elif block["type"] == "thinking":
            reasoning += str(block["thinking"])
        else:
            text += str(block["text"])
    return Message(role="assistant", text=text, reasoning=reasoning, tool_calls=tuple(calls))


@dataclass(frozen=True)
class _Reader:
    """How the recorded bodies of one protocol are read."""

    protocol: WireProtocol
    tools: Callable[[Body], frozenset[str]]
    answer: Callable[[Body], Message]


_READERS = {
    anthropic.NAME: _Reader(ANTHROPIC_MESSAGES, _anthropic_tools, _anthropic_answer),
    openai_chat.NAME: _Reader(OPENAI_CHAT, _chat_tools, _chat_answer),
    openai_responses.NAME: _Reader(OPENAI_RESPONSES, _responses_tools, _responses_answer),
}


def _reader(protocol: str) -> _Reader:
    reader = _READERS.get(protocol)
    if reader is None:
        raise ValueError(f"unknown protocol {protocol!r}")
    return reader
