"""How an answer leaves the proxy, and how it is known whether it arrived.

An answer is whole before its first byte. Invariant: a turn whose answer did not reach its reader is marked as lost: by
the client that went away while it was written, or by the connection that was reset afterwards.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.proxy.sockets import Connection
from engine.proxy.turn import Call
from engine.wire import replay
from engine.wire.messages import ChatRequest, Completion
from engine.wire.protocol import WireProtocol

EVENTS = "text/event-stream"
STREAM_PIECE = 64
"""Characters of text in one event of a stream."""


def event_stream(protocol: WireProtocol, completion: Completion, request: ChatRequest) -> Iterator[bytes]:
    """A whole answer as the stream that its client asked for."""
    return replay.events(protocol, completion, request, STREAM_PIECE)


class Answer(Response):
    """Sends a whole answer and notes whether it arrived."""

    def __init__(
        self,
        whole: bytes,
        events: Iterable[bytes] | None,
        call: Call,
        connection: Connection,
        watch: "asyncio.Task[None]",
    ) -> None:
        """`events` are the answer as a stream; None: `whole` is sent."""
        super().__init__(media_type="application/json" if events is None else EVENTS)
        if events is None:
            self.headers["content-length"] = str(len(whole))
        else:
            del self.headers["content-length"]
        self._chunks = (whole,) if events is None else events
        self._turn, self._connection, self._watch = call.turn, connection, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        self._connection.on_broken = self._lose
        arrived = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            arrived = not self._watch.done()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not arrived:
                self._lose()
            await cancel(self._watch)

    def _lose(self) -> None:
        if self._turn is not None:
            self._turn.broken = True


async def gone(request: Request) -> None:
    """Returns when the client has gone away (or its answer is complete)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; what it raises is its owner's to see."""
    task.cancel()
    await asyncio.wait({task})
