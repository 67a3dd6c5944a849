"""The HTTP side: one application for all trials; the socket has already said whose request it is.

Refused: any other path (404), another trial's key (401), a body over the limit (413), a body that is no request (400).
An answer is written only once it is whole, so a failure of the engine is a 5xx before any byte and never an event
stream that ends early. A response that did not reach its reader marks its turn as lost.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.proxy.session import TrialSession
from engine.proxy.sockets import Connection
from engine.proxy.turn import Call
from engine.wire import openai_fields, replay
from engine.wire.messages import ChatRequest, Completion, Refusal
from engine.wire.openai_chat import OPENAI_CHAT

STREAM_PIECE = 64
"""Characters of text in one event of a stream."""
CLIENT_GONE = 499
"""Status for the log alone: there is nobody to read it."""


def build_app(max_body: int) -> Starlette:
    """`scope["state"]["session"]` holds the trial's session; `max_body` in bytes."""

    async def complete(request: Request) -> Response:
        session: TrialSession = request.state.session
        try:
            _authorise(session, request)
            body = await _read(request, max_body)
        except Refusal as refusal:
            return _refuse(refusal)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        return await _complete(session, request, body)

    routes = [
        Route("/t/{trial}/v1/chat/completions", complete, methods=["POST"]),
        Route("/t/{trial}/v1/models", _models, methods=["GET"]),
        Route("/t/{trial}/v1/models/{model:path}", _models, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


def _authorise(session: TrialSession, request: Request) -> None:
    session.authorise(request.path_params["trial"], request.headers.get("authorization"))


async def _read(request: Request, limit: int) -> bytes:
    too_large = Refusal(f"The request body is larger than {limit} bytes.", status=413, code="request_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    chunks = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


async def _complete(session: TrialSession, request: Request, body: bytes) -> Response:
    connection: Connection = request.state.connection
    connection.on_broken = None  # A new request: the answer before it was read.
    call = session.begin(body)
    watch = asyncio.create_task(_gone(request))
    answer: Answer | None = None
    try:
        parsed = OPENAI_CHAT.parse(body)
        work = session.work(parsed, call)
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                await _cancel(work)
        if work.cancelled():
            return _unanswered(call, client_gone=watch.done())
        answer = Answer(_worded(parsed, work.result(), call), call, connection, watch)
    except Refusal as refusal:
        session.refused(call, refusal)
        return _refuse(refusal)
    except Exception as fault:
        session.failed(call, fault)
        return _refuse(Refusal("The proxy failed.", status=500, kind="server_error"))
    finally:
        if answer is None:
            await _cancel(watch)
    return answer


def _unanswered(call: Call, *, client_gone: bool) -> Response:
    if client_gone:
        call.error = "the client went away before the answer was there"
        return Response(status_code=CLIENT_GONE)
    call.error = "the trial ended before the answer was there"
    return _refuse(Refusal("This trial is over.", status=503, kind="server_error"))


@dataclass(frozen=True, kw_only=True)
class _Worded:
    """A completion in the protocol's words."""

    media_type: str
    length: int | None
    """Bytes in all; None: not known before the last."""
    chunks: Iterable[bytes]


def _worded(request: ChatRequest, completion: Completion, call: Call) -> _Worded:
    """Also notes the response; a stream is noted as the message that it makes."""
    body = orjson.dumps(OPENAI_CHAT.response(completion))
    call.response = body.decode()
    if not request.stream:
        return _Worded(media_type="application/json", length=len(body), chunks=(body,))
    events = replay.events(OPENAI_CHAT, completion, request, STREAM_PIECE)
    return _Worded(media_type="text/event-stream", length=None, chunks=events)


class Answer(Response):
    """Sends a whole answer and notes whether it arrived."""

    def __init__(self, worded: _Worded, call: Call, connection: Connection, watch: "asyncio.Task[None]") -> None:
        super().__init__(media_type=worded.media_type)
        if worded.length is None:
            del self.headers["content-length"]
        else:
            self.headers["content-length"] = str(worded.length)
        self._chunks, self._turn, self._connection, self._watch = worded.chunks, call.turn, connection, watch

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
            await _cancel(self._watch)

    def _lose(self) -> None:
        if self._turn is not None:
            self._turn.broken = True


async def _gone(request: Request) -> None:
    """Returns when the client has gone away (or its answer is complete)."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait for its end; what it raises is its owner's to see."""
    task.cancel()
    await asyncio.wait({task})


# ---------------------------------------------------------------- the rest of the API


async def _models(request: Request) -> Response:
    session: TrialSession = request.state.session
    name = session.endpoint.model
    try:
        _authorise(session, request)
        asked = request.path_params.get("model")
        if asked is None:
            return _json(openai_fields.models((name,)))
        if asked != name:
            raise Refusal(f"The model '{asked}' does not exist", status=404, param="model", code="model_not_found")
    except Refusal as refusal:
        return _refuse(refusal)
    return _json(openai_fields.model(name))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "Unknown request URL" if status == 404 else "Not allowed"
    return _refuse(Refusal(f"{what}: {request.method} {request.url.path}.", status=status))


def _refuse(refusal: Refusal) -> Response:
    return _json(OPENAI_CHAT.error(refusal), refusal.status)


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")
