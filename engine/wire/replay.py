"""An answer that is whole, as the stream that it would have been: one way for every protocol. Pure, no I/O."""

from collections.abc import Iterator
from dataclasses import replace

from engine.wire.messages import ChatRequest, Completion, Message
from engine.wire.protocol import (
    ArgumentsDelta,
    CallDelta,
    Delta,
    Opening,
    ReasoningDelta,
    TextDelta,
    WireProtocol,
)


def opening(completion: Completion) -> Opening:
    """What was known of the answer before its first token."""
    usage = replace(completion.usage, completion_tokens=0)
    return Opening(id=completion.id, created=completion.created, model=completion.model, usage=usage)


def deltas(message: Message, piece: int) -> Iterator[Delta]:
    """The message cut into texts of at most `piece` characters; nothing is said by an empty one."""
    for text in _pieces(message.reasoning, piece):
        yield ReasoningDelta(text)
    for text in _pieces(message.text, piece):
        yield TextDelta(text)
    for call in message.tool_calls:
        yield CallDelta(id=call.id, name=call.name)
        for text in _pieces(call.arguments, piece):
            yield ArgumentsDelta(text)


def events(protocol: WireProtocol, completion: Completion, request: ChatRequest, piece: int) -> Iterator[bytes]:
    """The answer as server-sent events."""
    stream = protocol.stream(opening(completion), request)
    yield stream.open()
    for delta in deltas(completion.message, piece):
        yield stream.write(delta)
    yield stream.close(completion)


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))
