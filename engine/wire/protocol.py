"""What every wire protocol offers: requests in, messages or event streams out. Pure translation, no I/O.

Invariant: the message that a stream's events make is the message that `response` words, however the deltas were cut.
A delta never takes back what an earlier one said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.wire.messages import ChatRequest, Completion, Refusal, Usage


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What is known of an answer before its first token."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    usage: Usage
    """Of the prompt; `completion_tokens` is 0."""


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True)
class TextDelta:
    """More of the text."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """A tool call begins; the calls before it are whole."""

    id: str
    name: str


@dataclass(frozen=True)
class ArgumentsDelta:
    """More of the arguments of the call that began last, as text."""

    text: str


Delta = ReasoningDelta | TextDelta | CallDelta | ArgumentsDelta


class EventStream(Protocol):
    """One answer as server-sent events; bytes are whole events, in order."""

    def open(self) -> bytes:
        """Before the first delta."""
        ...

    def write(self, delta: Delta) -> bytes:
        """The next piece of the answer; may be empty."""
        ...

    def close(self, completion: Completion) -> bytes:
        """The end of an answer that is whole; its message is the deltas' own."""
        ...

    def fail(self, refusal: Refusal) -> bytes:
        """The protocol's error inside a stream that has begun; after it the connection is broken off, so that no client
        takes the turn for finished."""
        ...


class WireProtocol(Protocol):
    """One protocol."""

    name: str
    overflow_in_stream: bool
    """Clients that asked for a stream know a full context window only by an event in it, by no status."""

    def parse(self, body: bytes) -> ChatRequest:
        """Validate a request body. Raises Refusal for whatever would change the answer and cannot be honoured."""
        ...

    def response(self, completion: Completion) -> Mapping[str, Any]:
        """The unstreamed response body."""
        ...

    def stream(self, opening: Opening, request: ChatRequest) -> EventStream:
        """The streamed one."""
        ...

    def error(self, refusal: Refusal) -> Mapping[str, Any]:
        """The body of an error response."""
        ...

    def context_overflow(self, limit: int, asked: int) -> Refusal:
        """The error that this protocol's clients take for a full context window, in tokens: never retried."""
        ...

    def models(self, names: Sequence[str]) -> Mapping[str, Any]:
        """The list of models."""
        ...

    def model(self, name: str) -> Mapping[str, Any]:
        """One model."""
        ...


class CountingProtocol(WireProtocol, Protocol):
    """A protocol that counts a prompt's tokens for its clients."""

    def parse_count(self, body: bytes) -> ChatRequest:
        """Validate the body of such a request. Raises Refusal."""
        ...

    def count(self, tokens: int) -> Mapping[str, Any]:
        """The answer to it."""
        ...
