"""How an answer leaves the proxy, and how it is known whether it arrived.

An answer is whole before its first byte, or it is streamed while it is sampled. Invariants: a stream ends in order only
if its turn is whole and recorded; any other is broken off after the protocol's own error, so that no client takes half
a turn for a whole one. A turn whose answer did not reach its reader is marked as lost: by the client that went away
while it was written, or by the connection that was reset afterwards.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.proxy.live import Live
from engine.proxy.session import TrialSession
from engine.proxy.sockets import Connection
from engine.proxy.turn import Call
from engine.wire import replay
from engine.wire.messages import ChatRequest, Completion, Refusal
from engine.wire.protocol import EventStream, WireProtocol

EVENTS = "text/event-stream"
STREAM_PIECE = 64
"""Characters of text in one event of an answer that is whole."""
LINGER_S = 5
"""Seconds for a client to see that it was refused before it had sent all."""
FLUSH_S = 5
"""Seconds for a client to read the last words of a stream that is broken off."""
FAULT = Refusal("The proxy failed.", status=500, kind="server_error")
OVER = Refusal("This trial is over.", status=503, kind="server_error")
CLIENT_LEFT = "the client went away before the answer was there"
TRIAL_ENDED = "the trial ended before the answer was there"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is being answered."""

    protocol: WireProtocol
    session: TrialSession
    call: Call
    connection: Connection
    watch: "asyncio.Task[None]"
    """Ends when the client has gone away."""

    def word(self, completion: Completion) -> bytes:
        """The body of the whole answer; also notes it: a stream is noted as the message that it makes."""
        body = orjson.dumps(self.protocol.response(completion))
        self.session.answered(self.call, body.decode())
        return body

    def lose(self) -> None:
        if self.call.turn is not None:
            self.call.turn.broken = True


class EarlyRefusal(Response):
    """Answers a request whose body was not read to its end.

    A connection that is closed while its client still writes is reset, and takes the answer with it: so what comes is
    read, and dropped, until the client is done or has had time to see the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        await _start(self, send)
        await _write(send, bytes(self.body))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body"):
                    pass
        await _end(send)


class WholeAnswer(Response):
    """Sends an answer that is there."""

    def __init__(self, asked: Asked, completion: Completion, request: ChatRequest) -> None:
        body = asked.word(completion)
        super().__init__(media_type=EVENTS if request.stream else "application/json")
        self._chunks: Iterable[bytes] = (body,)
        if request.stream:
            del self.headers["content-length"]
            self._chunks = replay.events(asked.protocol, completion, request, STREAM_PIECE)
        else:
            self.headers["content-length"] = str(len(body))
        self._asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        asked = self._asked
        asked.connection.on_broken = asked.lose
        arrived = False
        try:
            await _start(self, send)
            for chunk in self._chunks:
                await _write(send, chunk)
            arrived = not asked.watch.done()
            await _end(send)
        finally:
            if not arrived:
                asked.lose()
            await cancel(asked.watch)


class LiveAnswer(Response):
    """Streams an answer while it is sampled."""

    def __init__(self, asked: Asked, request: ChatRequest, live: Live, work: "asyncio.Task[Completion]") -> None:
        super().__init__(media_type=EVENTS)
        del self.headers["content-length"]
        self._asked, self._request, self._live, self._work = asked, request, live, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        asked, opening = self._asked, self._live.opening
        if opening is None:
            raise ValueError("a live answer begins with its first delta")
        asked.connection.on_broken = asked.lose
        stream = asked.protocol.stream(opening, self._request)
        arrived = False
        try:
            await _start(self, send)
            await _write(send, stream.open())
            await self._follow(stream, send)
            if asked.watch.done() and not self._work.done():
                asked.session.unanswered(asked.call, CLIENT_LEFT)
                return
            completion = self._work.result()
            asked.word(completion)
            await _write(send, stream.close(completion))
            arrived = not asked.watch.done()
            await _end(send)
        except asyncio.CancelledError:
            if not self._work.cancelled():
                raise
            asked.session.unanswered(asked.call, TRIAL_ENDED if asked.session.closing else CLIENT_LEFT)
            await self._break_off(stream, OVER, send)
        except Refusal as refusal:
            asked.session.refused(asked.call, refusal)
            await self._break_off(stream, refusal, send)
        except Exception as fault:
            asked.session.failed(asked.call, fault)
            await self._break_off(stream, FAULT, send)
        finally:
            if not arrived:
                asked.lose()
            await cancel(self._work)
            await cancel(asked.watch)

    async def _follow(self, stream: EventStream, send: Send) -> None:
        """Write what is told until the answer is whole, or has failed, or its client has gone."""
        while not self._asked.watch.done():
            ended = self._work.done()
            told = b"".join(map(stream.write, self._live.take()))
            if told:
                await _write(send, told)
            if ended:
                return
            await self._live.changed()

    async def _break_off(self, stream: EventStream, refusal: Refusal, send: Send) -> None:
        await _write(send, stream.fail(refusal))
        self._asked.connection.break_off()
        await asyncio.wait({self._asked.watch}, timeout=FLUSH_S)


async def _start(response: Response, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})


async def _write(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def gone(connection: Connection) -> None:
    """Returns when the client has gone away."""
    connection.listen()
    await connection.left.wait()


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; what it raises is its owner's to see."""
    task.cancel()
    await asyncio.wait({task})
