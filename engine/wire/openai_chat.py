"""OpenAI Chat Completions: `POST /v1/chat/completions`. Pure translation, no I/O.

Invariant: the streamed and the unstreamed wording of one `Completion` are the same message, however it was cut into
deltas. What is refused stands in `openai_chat_requests`. A turn without calls has no `tool_calls` at all; one that has
neither calls nor text says the empty text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engine.wire import openai_fields
from engine.wire.messages import ChatRequest, Completion, Refusal, Usage
from engine.wire.openai_chat_requests import parse_request
from engine.wire.protocol import ArgumentsDelta, CallDelta, Delta, EventStream, Opening, ReasoningDelta, TextDelta

__all__ = ["NAME", "OPENAI_CHAT", "OpenAIChat", "parse_request"]

NAME = "openai_chat"


class OpenAIChat:
    """The protocol."""

    name = NAME
    overflow_in_stream = False

    def parse(self, body: bytes) -> ChatRequest:
        return parse_request(body)

    def response(self, completion: Completion) -> Mapping[str, Any]:
        reply = completion.message
        content = None if reply.tool_calls and not reply.text else reply.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in reply.tool_calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(completion),
            "finish_reason": completion.finish_reason,
        }
        envelope = _envelope(completion, "chat.completion")
        return envelope | {"choices": [choice], "usage": _usage(completion.usage)}

    def stream(self, opening: Opening, request: ChatRequest) -> EventStream:
        return _Chunks(opening, request.include_usage)

    def error(self, refusal: Refusal) -> Mapping[str, Any]:
        return openai_fields.error(refusal)

    def context_overflow(self, limit: int, asked: int) -> Refusal:
        """Never retried by clients; may start a compaction."""
        return Refusal(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in {asked} "
            "tokens. Please reduce the length of the messages.",
            param="messages",
            code="context_length_exceeded",
        )

    def models(self, names: Sequence[str]) -> Mapping[str, Any]:
        return openai_fields.models(names)

    def model(self, name: str) -> Mapping[str, Any]:
        return openai_fields.model(name)


OPENAI_CHAT = OpenAIChat()


class _Chunks:
    """One answer as `chat.completion.chunk` events."""

    def __init__(self, opening: Opening, include_usage: bool) -> None:
        self._envelope = _envelope(opening, "chat.completion.chunk")
        if include_usage:
            self._envelope["usage"] = None
        self._include_usage = include_usage
        self._calls = 0
        self._said = False
        """Whether the message has text or a call yet."""

    def open(self) -> bytes:
        return self._chunk({"role": "assistant", "content": None, "refusal": None})

    def write(self, delta: Delta) -> bytes:
        if isinstance(delta, CallDelta):
            self._calls += 1
            self._said = True
            return self._call({"index": self._calls - 1} | _call(delta.id, delta.name, ""))
        if not delta.text:
            return b""
        if isinstance(delta, ReasoningDelta):
            return self._chunk({"reasoning_content": delta.text})
        if isinstance(delta, TextDelta):
            self._said = True
            return self._chunk({"content": delta.text})
        return self._arguments(delta)

    def close(self, completion: Completion) -> bytes:
        events = [] if self._said else [self._chunk({"content": ""})]
        events.append(self._chunk({}, logprobs=_logprobs(completion), finish_reason=completion.finish_reason))
        if self._include_usage:
            events.append(_event(self._envelope | {"choices": [], "usage": _usage(completion.usage)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def fail(self, refusal: Refusal) -> bytes:
        return _event(openai_fields.error(refusal))

    def _arguments(self, delta: ArgumentsDelta) -> bytes:
        if not self._calls:
            raise ValueError("arguments without a call")
        return self._call({"index": self._calls - 1, "function": {"arguments": delta.text}})

    def _call(self, call: dict[str, Any]) -> bytes:
        return self._chunk({"tool_calls": [call]})

    def _chunk(
        self, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return _event(self._envelope | {"choices": [choice]})


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _envelope(answer: Opening | Completion, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created, "model": answer.model}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


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
