"""OpenAI Responses: `POST /v1/responses`, as Codex speaks it. Pure translation, no I/O.

Invariant: the streamed and the unstreamed wording of one `Completion` are the same output: reasoning, message, calls,
one item each, never two open at once. A turn that has neither text nor call says the empty text. Text after a call (a
model may go on) is a further message item, for nothing that was said is taken back.

A response does not repeat the request (tools, instructions, metadata): a client has them, and they would cross the wire
three times a turn. An answer cut by its token limit is `incomplete` and so is its last item. In a stream, Codex takes
`response.failed` with the code `context_length_exceeded` for a full window, `invalid_prompt` for a failure that no
retry helps, and any other for one that it tries again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from engine.wire import openai_fields
from engine.wire.messages import ChatRequest, Completion, FinishReason, Refusal, Usage
from engine.wire.openai_responses_echo import name_fields, seal
from engine.wire.openai_responses_requests import parse_request
from engine.wire.protocol import ArgumentsDelta, CallDelta, Delta, EventStream, Opening, ReasoningDelta

NAME = "openai_responses"

Kind = Literal["reasoning", "message", "function_call"]
_PREFIX: dict[Kind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_EVENT: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class OpenAIResponses:
    """The protocol."""

    name = NAME
    overflow_in_stream = True

    def parse(self, body: bytes) -> ChatRequest:
        return parse_request(body)

    def response(self, completion: Completion) -> Mapping[str, Any]:
        status = _status(completion.finish_reason)
        items = _items(completion)
        output = [item.whole("completed") for item in items[:-1]] + [items[-1].whole(status)]
        return _body(completion, status, output, usage=completion.usage)

    def stream(self, opening: Opening, request: ChatRequest) -> EventStream:  # noqa: ARG002 (all that matters is known)
        return _Events(opening)

    def error(self, refusal: Refusal) -> Mapping[str, Any]:
        return openai_fields.error(refusal)

    def context_overflow(self, limit: int, asked: int) -> Refusal:
        """Never retried by clients. Codex knows it in a stream alone (`fail`), not in the body of a 400."""
        return Refusal(
            f"Your input exceeds the context window of this model: {asked} tokens, {limit} allowed. "
            "Please adjust your input and try again.",
            param="input",
            code="context_length_exceeded",
        )

    def models(self, names: Sequence[str]) -> Mapping[str, Any]:
        return openai_fields.models(names)

    def model(self, name: str) -> Mapping[str, Any]:
        return openai_fields.model(name)


OPENAI_RESPONSES = OpenAIResponses()


@dataclass(kw_only=True)
class _Item:
    """One output item, whole or growing."""

    kind: Kind
    index: int
    """Its place in the output."""
    answer: str
    """The answer's id."""
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{_PREFIX[self.kind]}_{self.answer}_{self.index}"

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def empty(self) -> dict[str, Any]:
        """As it is added to a stream."""
        if self.kind == "function_call":
            return self._worded("in_progress", {"arguments": ""})
        return self._worded("in_progress", {"content": []})

    def whole(self, status: str) -> dict[str, Any]:
        text = self.text
        if self.kind == "function_call":
            return self._worded(status, {"arguments": text})
        return self._worded(status, {"content": [self.part(text)]})

    def part(self, text: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _worded(self, status: str, content: dict[str, Any]) -> dict[str, Any]:
        item = {"id": self.id, "type": self.kind, "status": status} | content
        if self.kind == "message":
            return item | {"role": "assistant"}
        if self.kind == "reasoning":
            return item | {"summary": [], "encrypted_content": seal(self.text) if content["content"] else None}
        return item | {"call_id": self.call_id} | name_fields(self.name)


class _Events:
    """One answer as server-sent events."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        """Items that are whole."""
        self._item: _Item | None = None
        self._said = False
        """Whether the output has a message or a call yet."""

    def open(self) -> bytes:
        begun = _body(self._opening, "in_progress", [])
        created = self._event("response.created", {"response": begun})
        return created + self._event("response.in_progress", {"response": begun})

    def write(self, delta: Delta) -> bytes:
        if isinstance(delta, CallDelta):
            return self._end("completed") + self._begin("function_call", delta.id, delta.name)[1]
        if not delta.text:
            return b""
        if isinstance(delta, ArgumentsDelta):
            if self._item is None or self._item.kind != "function_call":
                raise ValueError("arguments without a call")
            return self._grow(self._item, delta.text)
        kind: Kind = "reasoning" if isinstance(delta, ReasoningDelta) else "message"
        item, begun = self._item, b""
        if item is None or item.kind != kind:
            begun = self._end("completed")
            item, added = self._begin(kind)
            begun += added
        return begun + self._grow(item, delta.text)

    def close(self, completion: Completion) -> bytes:
        status = _status(completion.finish_reason)
        events = b"" if self._said else self._end("completed") + self._begin("message")[1]
        events += self._end(status)
        body = _body(self._opening, status, self._output, usage=completion.usage)
        return events + self._event(f"response.{status}", {"response": body})

    def fail(self, refusal: Refusal) -> bytes:
        body = _body(self._opening, "failed", self._output)
        body["error"] = {"code": _failure(refusal), "message": refusal.message}
        return self._event("response.failed", {"response": body})

    # ------------------------------------------------------------ items

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> tuple[_Item, bytes]:
        item = _Item(kind=kind, index=len(self._output), answer=self._opening.id, call_id=call_id, name=name)
        self._item = item
        self._said = self._said or kind != "reasoning"
        added = self._event("response.output_item.added", {"output_index": item.index, "item": item.empty()})
        if kind == "function_call":
            return item, added
        return item, added + self._of(item, "response.content_part.added", {"part": item.part("")})

    def _grow(self, item: _Item, text: str) -> bytes:
        item.pieces.append(text)
        return self._of(item, f"{_EVENT[item.kind]}.delta", {"delta": text} | _logprobs(item.kind))

    def _end(self, status: str) -> bytes:
        item, self._item = self._item, None
        if item is None:
            return b""
        text = item.text
        if item.kind == "function_call":
            done = self._of(item, f"{_EVENT[item.kind]}.done", {"arguments": text} | name_fields(item.name))
        else:
            done = self._of(item, f"{_EVENT[item.kind]}.done", {"text": text} | _logprobs(item.kind))
            done += self._of(item, "response.content_part.done", {"part": item.part(text)})
        whole = item.whole(status)
        self._output.append(whole)
        return done + self._event("response.output_item.done", {"output_index": item.index, "item": whole})

    def _of(self, item: _Item, kind: str, fields: dict[str, Any]) -> bytes:
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.kind != "function_call":
            place["content_index"] = 0
        return self._event(kind, place | fields)

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


def _logprobs(kind: Kind) -> dict[str, Any]:
    """Clients insist on the field in events of texts."""
    return {"logprobs": []} if kind == "message" else {}


def _items(completion: Completion) -> list[_Item]:
    """The whole answer's; never none."""
    reply = completion.message
    items: list[_Item] = []

    def add(kind: Kind, text: str, call_id: str = "", name: str = "") -> None:
        index = len(items)
        items.append(_Item(kind=kind, index=index, answer=completion.id, call_id=call_id, name=name, pieces=[text]))

    if reply.reasoning:
        add("reasoning", reply.reasoning)
    if reply.text or not reply.tool_calls:
        add("message", reply.text)
    for call in reply.tool_calls:
        add("function_call", call.arguments, call.id, call.name)
    return items


def _body(
    answer: Opening | Completion, status: str, output: list[dict[str, Any]], *, usage: Usage | None = None
) -> dict[str, Any]:
    """A response object."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None if usage is None else _usage(usage),
    }


def _status(finish: FinishReason) -> str:
    return "incomplete" if finish == "length" else "completed"


def _usage(usage: Usage) -> dict[str, Any]:
    """Reasoning is not counted apart: it is within `output_tokens`, and it stays in this model's context."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _failure(refusal: Refusal) -> str:
    if refusal.status >= 500:
        return "server_error"
    if refusal.status == 429:
        return "rate_limit_exceeded"
    return "context_length_exceeded" if refusal.code == "context_length_exceeded" else "invalid_prompt"
