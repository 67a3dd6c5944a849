"""The HTTP side: one application for all trials; the socket has already said whose request it is.

Refused, in the words of the protocol that the client speaks: any other path (404) or method (405), another trial's key
(401), a body over the limit (413), a body that is no request (400). Until the first word of an answer is certain, a
failure of the engine is a 5xx; what happens after it is `engine.proxy.answer`'s matter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.proxy.answer import (
    CLIENT_LEFT,
    EVENTS,
    FAULT,
    OVER,
    TRIAL_ENDED,
    Asked,
    EarlyRefusal,
    LiveAnswer,
    WholeAnswer,
    cancel,
    gone,
)
from engine.proxy.live import Live
from engine.proxy.routes import ANSWERED, COUNTED, HELLO, MODELS, protocol_of
from engine.proxy.session import TrialSession
from engine.proxy.sockets import Connection
from engine.proxy.turn import Call, ContextOverflow
from engine.wire.messages import ChatRequest, Refusal, Usage
from engine.wire.protocol import CountingProtocol, Opening, WireProtocol

GONE = Refusal(CLIENT_LEFT, status=499)
"""For a client that has only ended its own side, and reads on."""

SHOWN = 200
"""Characters of a path that a refusal repeats."""

_Handler = Callable[[Request], Awaitable[Response]]


def build_app(max_body: int) -> Starlette:
    """`scope["state"]["session"]` holds the trial's session; `max_body` in bytes."""
    trial = "/t/{trial}"
    answered = [Route(trial + path, _answers(spoken, max_body), methods=["POST"]) for path, spoken in ANSWERED.items()]
    counted = [Route(trial + path, _counts(spoken, max_body), methods=["POST"]) for path, spoken in COUNTED.items()]
    rest = [
        Route(trial + MODELS, _models, methods=["GET"]),
        Route(trial + MODELS + "/{model:path}", _models, methods=["GET"]),
        Route(trial + HELLO, _hello, methods=["GET"]),
    ]
    app = Starlette(
        routes=[*answered, *counted, *rest], exception_handlers={HTTPException: _http_error, Exception: _faulted}
    )
    app.router.redirect_slashes = False
    return app


def _authorise(session: TrialSession, request: Request) -> None:
    session.authorise(request.path_params["trial"], request.headers)


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


# ---------------------------------------------------------------- answers


def _answers(protocol: WireProtocol, max_body: int) -> _Handler:
    async def answer(request: Request) -> Response:
        try:
            _authorise(request.state.session, request)
            body = await _read(request, max_body)
        except Refusal as refusal:
            return _refuse_early(protocol, refusal)
        except ClientDisconnect:
            return _refuse(protocol, GONE)
        return await _answer(protocol, request, body)

    return answer


async def _answer(protocol: WireProtocol, request: Request, body: bytes) -> Response:
    session: TrialSession = request.state.session
    connection: Connection = request.state.connection
    connection.on_broken = None  # A new request: the answer before it was read.
    await session.supersede()
    call = session.begin(protocol.name, body)
    watch = asyncio.create_task(gone(connection))
    asked = Asked(protocol=protocol, session=session, call=call, connection=connection, watch=watch)
    answer: Response | None = None
    parsed: ChatRequest | None = None
    try:
        parsed = protocol.parse(body)
        answer = await _begun(asked, parsed)
    except ContextOverflow as full:
        refusal = protocol.context_overflow(full.limit, full.asked)
        session.refused(call, refusal)
        if parsed is not None and parsed.stream and protocol.overflow_in_stream:
            return _refuse_in_stream(protocol, refusal, parsed, call)
        return _refuse(protocol, refusal)
    except Refusal as refusal:
        session.refused(call, refusal)
        return _refuse(protocol, refusal)
    except Exception as fault:
        session.failed(call, fault)
        return _refuse(protocol, FAULT)
    finally:
        if answer is None:
            await cancel(watch)
    return answer or _unanswered(protocol, session, call, client_gone=not session.closing)


async def _begun(asked: Asked, request: ChatRequest) -> Response | None:
    """The answer, whole or begun; None where none will come."""
    live = Live()
    work = asked.session.work(request, asked.call, live if request.stream else None, asked.connection)
    live.wake_when_done(work)
    live.wake_when_done(asked.watch)
    handed_over = False
    try:
        await live.changed()
        if live.opening is not None and not work.done() and not asked.watch.done():
            handed_over = True
            return LiveAnswer(asked, request, live, work)
    finally:
        if not work.done() and not handed_over:
            await cancel(work)
    return None if work.cancelled() else WholeAnswer(asked, work.result(), request)


def _unanswered(protocol: WireProtocol, session: TrialSession, call: Call, *, client_gone: bool) -> Response:
    if client_gone:
        session.unanswered(call, CLIENT_LEFT)
        return _refuse(protocol, GONE)
    session.unanswered(call, TRIAL_ENDED)
    return _refuse(protocol, OVER)


def _counts(protocol: CountingProtocol, max_body: int) -> _Handler:
    """Counting is no call of the model's: it leaves no exchange."""

    async def count(request: Request) -> Response:
        session: TrialSession = request.state.session
        try:
            _authorise(session, request)
            body = await _read(request, max_body)
        except Refusal as refusal:
            return _refuse_early(protocol, refusal)
        except ClientDisconnect:
            return _refuse(protocol, GONE)
        try:
            parsed = protocol.parse_count(body)
            session.check_open()
            return _json(protocol.count(await session.turns.count(parsed)))
        except Refusal as refusal:
            return _refuse(protocol, refusal)
        except Exception as fault:
            session.note(fault)
            return _refuse(protocol, FAULT)

    return count


# ---------------------------------------------------------------- the rest of the API


async def _models(request: Request) -> Response:
    session: TrialSession = request.state.session
    protocol = protocol_of(request.scope["path"], request.headers)
    name = session.endpoint.model
    try:
        _authorise(session, request)
        asked = request.path_params.get("model")
        if asked is None:
            return _json(protocol.models((name,)))
        if asked != name:
            raise Refusal(f"The model '{asked}' does not exist", status=404, param="model", code="model_not_found")
    except Refusal as refusal:
        return _refuse(protocol, refusal)
    return _json(protocol.model(name))


async def _hello(request: Request) -> Response:
    session: TrialSession = request.state.session
    if request.path_params["trial"] != session.path_name:
        return await _http_error(request, HTTPException(404))
    return _json({"message": "hello"})


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or a method that does not exist. The path alone: it takes more to make a URL, and that can fail."""
    path: str = request.scope["path"]
    refused = error if isinstance(error, HTTPException) else HTTPException(404)
    what = "Unknown request URL" if refused.status_code == 404 else "Not allowed"
    refusal = Refusal(f"{what}: {request.method} {path[:SHOWN]}.", status=refused.status_code)
    response = _refuse_early(protocol_of(path, request.headers), refusal)
    response.headers.update(refused.headers or {})
    return response


async def _faulted(request: Request, error: Exception) -> Response:
    """What no handler foresaw ends the run, as any other fault of the engine's own."""
    session: TrialSession = request.state.session
    session.note(error)
    return _refuse(protocol_of(request.scope["path"], request.headers), FAULT)


def _refuse(protocol: WireProtocol, refusal: Refusal) -> Response:
    return _json(protocol.error(refusal), refusal.status)


def _refuse_early(protocol: WireProtocol, refusal: Refusal) -> Response:
    body = orjson.dumps(protocol.error(refusal))
    return EarlyRefusal(body, status_code=refusal.status, media_type="application/json")


def _refuse_in_stream(protocol: WireProtocol, refusal: Refusal, asked: ChatRequest, call: Call) -> Response:
    """The refusal is the whole stream: it ends in order, since nothing was cut off."""
    tokens = 0 if call.turn is None else call.turn.prompt_length
    usage = Usage(prompt_tokens=tokens, completion_tokens=0, cached_tokens=0)
    stream = protocol.stream(Opening(id=call.id, created=int(call.started_s), model=asked.model, usage=usage), asked)
    return Response(stream.open() + stream.fail(refusal), media_type=EVENTS)


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")
