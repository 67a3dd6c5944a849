"""The form of a conversation that all wire protocols share.

A protocol's module turns a request into a `ChatRequest` and a `Completion` into a response; nothing else in the engine
knows a protocol's field names. What cannot be honoured raises `Refusal`, which each protocol words in its own way.
Invariant: every text held here is valid Unicode (no lone surrogate), so that it can always be encoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import orjson

from engine.wire.unicode import loads_leniently

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls"]


class Refusal(Exception):
    """A request that cannot be answered; not retryable unless `status` says so.

    `kind` and `code` are the OpenAI names, other protocols map them; `param` is the offending field, if one is."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.param, self.code = message, status, kind, param, code


_ROOM = 16
"""Levels that a body or a rendered prompt may put around a value that somebody else made."""


def fits_a_body(value: Any) -> bool:
    """Whether a JSON value can be written again inside a body: serialisers end at 254 levels and 64-bit integers."""
    for _ in range(_ROOM):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def arguments_object(arguments: str) -> dict[str, Any] | None:
    """The JSON object of a tool call's arguments; None when the text is not one, or one that fits no body."""
    try:
        value = orjson.loads(arguments)
    except ValueError:
        try:
            value = loads_leniently(arguments)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) and fits_a_body(value) else None


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool; `arguments` is the text as the protocol carries it, valid JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message, its content parts joined to text."""

    role: Role
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a tool's result: the call it answers."""
    is_error: bool = False
    """Of a tool's result: the client marked it as a failure. A label: what the model reads of it stands in `text`."""

    def to_chat(self) -> dict[str, Any]:
        """The mapping that a renderer takes (OpenAI field names, arguments as an object where they are one)."""
        chat: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.reasoning:
            chat["reasoning_content"] = self.reasoning
        if self.tool_call_id:
            chat["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            chat["tool_calls"] = [_call_to_chat(call) for call in self.tool_calls]
        return chat


def _call_to_chat(call: ToolCall) -> dict[str, Any]:
    parsed = arguments_object(call.arguments)
    function = {"name": call.name, "arguments": call.arguments if parsed is None else parsed}
    return {"id": call.id, "type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A validated request for one assistant message."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    """OpenAI tool objects, in the order given; empty when the client forbids calls."""
    max_tokens: int | None
    """The client's own bound on the response, in tokens."""
    stream: bool
    include_usage: bool
    """Whether a stream ends with a usage event."""
    logprobs: bool

    @cached_property
    def tools_key(self) -> bytes:
        """Equal for equal sets of tools, whatever their order."""
        return b"\n".join(sorted(orjson.dumps(tool, option=orjson.OPT_SORT_KEYS) for tool in self.tools))

    @cached_property
    def tool_names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts of one call, as the engine saw them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """One sampled token, for a client that asked for log-probabilities."""

    text: str
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One finished assistant message, ready to be worded in any protocol."""

    id: str
    """The exchange's; each protocol puts its own mark before it."""
    created: int
    """Unix seconds."""
    model: str
    message: Message
    finish_reason: FinishReason
    usage: Usage
    logprobs: Sequence[TokenLogprob] | None = None
    """None unless the client asked for them."""
