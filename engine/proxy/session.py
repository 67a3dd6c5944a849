"""The proxy's side of one trial: who may call, what is noted of each call, and what is left at the end.

Invariant: each authorised request for a completion becomes exactly one Exchange, answered, refused, failed or
cancelled. `close` ends whatever still runs before it counts; what went wrong in the engine's own code (not in the
trial) is raised there and ends the run.
"""

import asyncio
import hmac
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError
from engine.core.records import Exchange, ExchangeKind, Generation, Segment, Termination
from engine.core.specs import Endpoint
from engine.proxy.bodies import Bodies, Body
from engine.proxy.live import Live
from engine.proxy.segments import routed_start, segments
from engine.proxy.sockets import Connection, ServedSocket, SocketServer
from engine.proxy.turn import Call, Turns
from engine.wire.messages import ChatRequest, Completion, Refusal

Captured = tuple[tuple[Exchange, ...], tuple[Segment, ...], Termination | None]

REFUSED_BODY = 1 << 16
"""Characters kept of a request that was not answered: an agent that floods the proxy must not fill the trainer's
memory."""
REFUSED_BODIES = 1 << 24
"""Of all of them together."""


class TrialSession:
    """Serves one trial."""

    def __init__(self, turns: Turns, server: SocketServer, port: int) -> None:
        self.turns = turns
        self.path_name = re.sub(r"[^A-Za-z0-9._-]", "-", str(turns.trial.key))
        self.endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{port}/t/{self.path_name}",
            api_key=f"sk-trial-{secrets.token_urlsafe(24)}",
            model=turns.model,
        )
        self.heard: Callable[[Exchange], None] | None = None
        self._server = server
        self._sockets: list[ServedSocket] = []
        self._calls: list[Call] = []
        self._bodies = Bodies()
        self._work: dict[asyncio.Task[Completion], Connection] = {}
        self._fault: Exception | None = None
        self._room = REFUSED_BODIES
        self._closing: asyncio.Task[Captured] | None = None

    async def serve(self, listener: socket.socket) -> None:
        """Serve this trial, and no other, on a listening socket."""
        self._sockets.append(await self._server.serve(listener, {"session": self}))

    # ------------------------------------------------------------ calls

    def authorise(self, path_name: str, headers: Mapping[str, str]) -> None:
        """Raises Refusal: 404 for another trial's path, 401 for another key.

        A key comes as `Authorization: Bearer` or as `x-api-key`; a client that has two may send both."""
        if path_name != self.path_name:
            raise Refusal("Unknown request URL.", status=404)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [token.strip() if scheme.lower() == "bearer" else ""] if scheme else []
        given += [headers["x-api-key"].strip()] if "x-api-key" in headers else []
        known = self.endpoint.api_key.encode()
        if not any(hmac.compare_digest(key.encode(), known) for key in given):
            raise Refusal("Incorrect API key provided.", status=401, code="invalid_api_key")

    def begin(self, protocol: str, body: bytes) -> Call:
        """Note a request that has wholly arrived."""
        call = Call(
            id=f"x{len(self._calls)}",
            protocol=protocol,
            request=body,
            started_s=time.time(),
            begun=time.monotonic(),
        )
        self._calls.append(call)
        return call

    def work(
        self, request: ChatRequest, call: Call, live: Live | None, connection: Connection
    ) -> "asyncio.Task[Completion]":
        """Answer a request in a task that `close` can cancel. Raises Refusal when the trial is over."""
        self.check_open()
        task = asyncio.create_task(self._answer(request, call, live))
        self._work[task] = connection
        task.add_done_callback(self._work.pop)
        return task

    async def _answer(self, request: ChatRequest, call: Call, live: Live | None) -> Completion:
        completion = await self.turns.answer(request, call, live)
        if isinstance(call.request, bytes):
            call.request = self._bodies.keep(call.request)
        return completion

    async def supersede(self) -> None:
        """End the calls whose clients have gone away, ahead of a new request.

        A client that gives up closes its connection and asks again; the request may be heard of before the end. Then
        the call that nobody waits for must not hold the place, the turn or the engine of the one that replaces it. An
        equal request beside a connection that still stands is another one (a sub-agent's, a resample): both are
        answered."""
        for task, connection in list(self._work.items()):
            if connection.ended():
                connection.left.set()
                task.cancel()
                await asyncio.wait({task})

    @property
    def closing(self) -> bool:
        return self._closing is not None

    def check_open(self) -> None:
        """Raises Refusal when the trial is over."""
        if self._closing is not None:
            raise Refusal("This trial is over.", status=503, kind="server_error")

    def refused(self, call: Call, refusal: Refusal) -> None:
        self.unanswered(call, refusal.message)

    def failed(self, call: Call, fault: Exception) -> None:
        self.unanswered(call, f"{type(fault).__name__}: {fault}")
        self.note(fault)

    def answered(self, call: Call, response: str) -> None:
        """A call has its answer, which is on its way to the client."""
        call.response = response
        if self.heard is not None:
            self.heard(_exchange(call))

    def unanswered(self, call: Call, reason: str) -> None:
        """Nothing comes of a call: it is remembered, its body as far as there is room."""
        call.error = reason
        if self.heard is not None:
            self.heard(_exchange(call))
        if not isinstance(call.request, Body):
            call.request = call.request[: min(REFUSED_BODY, self._room)]
            self._room -= len(call.request)

    def note(self, fault: Exception) -> None:
        """A fault of the engine's own: remembered, raised by `close`."""
        self._fault = self._fault or fault

    # ------------------------------------------------------------ the end

    async def close(self) -> Captured:
        """Stop serving; what was captured. Raises AlignmentError, or the fault that broke a call. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> Captured:
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for served in self._sockets:
            await served.close()
        try:
            return self._captured()
        finally:
            self.turns.spill.close()

    def _captured(self) -> Captured:
        if self._fault is not None:
            raise self._fault
        built = segments(self.turns.conversation, self.turns.spill)
        exchanges = tuple(_exchange(call) for call in self._calls)
        _check_once(exchanges, built)
        return exchanges, built, self.turns.termination


def _exchange(call: Call) -> Exchange:
    turn = call.turn
    kind: ExchangeKind = "policy"
    if turn is None or turn.generation is None or turn.discarded:
        kind = "discarded"
    elif turn.side:
        kind = "side"
    nothing: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
    return Exchange(
        id=call.id,
        parent=None if turn is None or turn.parent is None else turn.parent.id,
        kind=kind,
        protocol=call.protocol,
        request=_text(call.request),
        response=call.response,
        prompt_ids=nothing if turn is None else turn.new_ids,
        prompt_length=0 if turn is None else turn.prompt_length,
        error=call.error,
        started_s=call.started_s,
        queued_s=call.queued_s,
        generate_s=call.generate_s,
        **_sampled(call.sampled, 0 if turn is None else routed_start(turn.parent)),
    )


def _text(body: str | bytes | Body) -> Any:
    """The text of a body; that of a kept one is made when it is read, for together they are large."""
    if isinstance(body, Body):
        return body.text
    return body if isinstance(body, str) else body.decode("utf-8", "replace")


def _sampled(generation: Generation | None, start: int) -> dict[str, Any]:
    """The fields of an Exchange that the engine fills."""
    if generation is None:
        return {
            "sampled_ids": np.zeros(0, dtype=np.int32),
            "logprobs": np.zeros(0, dtype=np.float32),
            "policy_versions": np.zeros(0, dtype=np.int32),
            "routed_experts": None,
            "routed_start": start,
            "finish_reason": "",
            "cached_tokens": 0,
        }
    return {
        "sampled_ids": generation.token_ids,
        "logprobs": generation.logprobs,
        "policy_versions": generation.policy_versions,
        "routed_experts": generation.routed_experts,
        "routed_start": generation.routed_start,
        "finish_reason": generation.finish_reason,
        "cached_tokens": generation.cached_tokens,
    }


def _check_once(exchanges: tuple[Exchange, ...], built: tuple[Segment, ...]) -> None:
    """Each sampled token is a target exactly once: the tree's own books, checked at the end of every trial."""
    sampled = sum(len(exchange.sampled_ids) for exchange in exchanges if exchange.kind == "policy")
    targets = sum(int(segment.target.sum()) for segment in built)
    if sampled != targets:
        raise AlignmentError(f"{sampled} tokens were sampled, {targets} are targets")
