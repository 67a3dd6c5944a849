"""Anthropic Messages: answers as bodies and event streams, errors, and the protocol as one object. Pure, no I/O.

Invariant: the message that a stream's events make is the unstreamed one: one thinking block, one text block, then the
calls, each only where there is something in it. A model may write text between two calls, so the calls of a stream wait
for the answer's end; reasoning and text flow as they come. No client can thus run a call of a turn that then fails.

A call's input is an object in this protocol, and by default a real server checks a parameter before it sends it. So
arguments that are no JSON object become `{}` in both forms: a tool with a required parameter answers that it is
missing, under the same call id, and the session goes on. Sent as text they would break the official SDK's stream
(it raises on JSON that no further text can mend), and a partial reading would run a call that the model did not make.

Refused: reasoning after text, for which the message has no place.
"""

import base64
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from engine.wire.anthropic_requests import parse_count, parse_request
from engine.wire.messages import ChatRequest, Completion, Refusal, ToolCall, Usage, arguments_object
from engine.wire.protocol import Delta, EventStream, Opening, ReasoningDelta, TextDelta

NAME = "anthropic"

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicMessages:
    """The protocol of `/v1/messages` and `/v1/messages/count_tokens`."""

    name = NAME
    overflow_in_stream = False

    def parse(self, body: bytes) -> ChatRequest:
        return parse_request(body)

    def parse_count(self, body: bytes) -> ChatRequest:
        """A request to count its prompt's tokens."""
        return parse_count(body)

    def count(self, tokens: int) -> Mapping[str, Any]:
        """The answer to it."""
        return {"input_tokens": tokens}

    def response(self, completion: Completion) -> Mapping[str, Any]:
        return _message(
            Opening(id=completion.id, created=completion.created, model=completion.model, usage=completion.usage),
            content=_content(completion),
            stop_reason=_stop_reason(completion),
        )

    def stream(self, opening: Opening, request: ChatRequest) -> EventStream:  # noqa: ARG002 (other protocols read it)
        return AnthropicStream(opening)

    def error(self, refusal: Refusal) -> Mapping[str, Any]:
        kind = _ERROR_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}

    def context_overflow(self, limit: int, asked: int) -> Refusal:
        """Clients know it by its words: never retried, may start a compaction."""
        return Refusal(f"prompt is too long: {asked} tokens > {limit} maximum", param="messages")

    def models(self, names: Sequence[str]) -> Mapping[str, Any]:
        data = [self.model(name) for name in names]
        return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}

    def model(self, name: str) -> Mapping[str, Any]:
        """When the model was made is not known: the epoch, as the protocol says."""
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
            "lifecycle": "active",
        }


ANTHROPIC_MESSAGES = AnthropicMessages()


# ---------------------------------------------------------------- messages


def _message(opening: Opening, *, content: list[dict[str, Any]], stop_reason: str | None) -> dict[str, Any]:
    return {
        "id": f"msg_{opening.id}",
        "type": "message",
        "role": "assistant",
        "model": opening.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": _usage(opening.usage),
    }


def _content(completion: Completion) -> list[dict[str, Any]]:
    message = completion.message
    content = []
    if message.reasoning:
        signature = _sign(blake2b(message.reasoning.encode(), digest_size=16).digest())
        content.append(_thinking(message.reasoning, signature))
    if message.text:
        content.append(_text(message.text))
    return content + [_tool_use(call, _input(call)) for call in message.tool_calls]


def _thinking(thinking: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _sign(digest: bytes) -> str:
    """Clients drop reasoning that is not signed; nobody verifies it, for what is read is the text."""
    return base64.b64encode(digest).decode()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(call: ToolCall, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _input(call: ToolCall) -> dict[str, Any]:
    return arguments_object(call.arguments) or {}


def _stop_reason(completion: Completion) -> str:
    """A turn with calls never ends as one without: clients would drop the calls."""
    if completion.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if completion.message.tool_calls else "end_turn"


def _usage(usage: Usage) -> dict[str, Any]:
    """`input_tokens` are those that no cache held: clients add up the three kinds for the context's size."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


# ---------------------------------------------------------------- streams


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind} | fields))


PING = _event("ping")
"""May stand anywhere after a stream's opening: a sign of life while the answer takes its time."""


class AnthropicStream:
    """One answer as events; at most one block is open."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._index = -1
        """Of the block that began last."""
        self._open = ""
        """Its type, while it is open."""
        self._reasoning = blake2b(digest_size=16)

    def open(self) -> bytes:
        return _event("message_start", message=_message(self._opening, content=[], stop_reason=None)) + PING

    def write(self, delta: Delta) -> bytes:
        if isinstance(delta, ReasoningDelta) and delta.text:
            if self._open != "thinking" and self._index >= 0:
                raise ValueError("reasoning after text: a message has one thinking block, before its text")
            self._reasoning.update(delta.text.encode())
            return self._begin(_thinking("", "")) + self._delta({"type": "thinking_delta", "thinking": delta.text})
        if isinstance(delta, TextDelta) and delta.text:
            return self._begin(_text("")) + self._delta({"type": "text_delta", "text": delta.text})
        return b""

    def close(self, completion: Completion) -> bytes:
        blocks = [self._call(call) for call in completion.message.tool_calls]
        delta = {"stop_reason": _stop_reason(completion), "stop_sequence": None, "stop_details": None}
        events = [*blocks, self._end(), _event("message_delta", delta=delta, usage=_usage(completion.usage))]
        return b"".join(events) + _event("message_stop")

    def fail(self, refusal: Refusal) -> bytes:
        return _event("error", error=ANTHROPIC_MESSAGES.error(refusal)["error"])

    def _call(self, call: ToolCall) -> bytes:
        written = orjson.dumps(_input(call)).decode()
        begin = self._end() + self._begin(_tool_use(call, {}))
        return begin + self._delta({"type": "input_json_delta", "partial_json": written})

    def _begin(self, block: dict[str, Any]) -> bytes:
        """Nothing where such a block is open."""
        if self._open == block["type"]:
            return b""
        before = self._end()
        self._open = block["type"]
        self._index += 1
        return before + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _end(self) -> bytes:
        """Nothing where no block is open."""
        if not self._open:
            return b""
        signature = b""
        if self._open == "thinking":
            signature = self._delta({"type": "signature_delta", "signature": _sign(self._reasoning.digest())})
        self._open = ""
        return signature + _event("content_block_stop", index=self._index)
