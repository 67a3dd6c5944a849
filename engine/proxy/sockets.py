"""One HTTP server in this process for sockets that come and go.

Each trial hands in a listening socket of its own (inside its sandbox's network), served by uvicorn's protocol class
with one shared configuration and one application; the socket decides which session a request belongs to. Invariant:
after `close` nothing of a socket is left: no listener, connection or task.

All trials share this process's memory and descriptors, and an agent can write to its socket whatever it likes. So a
request's head is bounded (400 beyond it), and so are the connections of one socket: the one that has rested longest
makes room for a new one.

A client that ends its side counts as gone: it cannot be told from one that was killed, and an engine that samples for
nobody keeps others waiting. The connection stays open for the refusal, or the answer that needs no engine, in case that
the client reads on.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.server import ServerState

KEEP_ALIVE_S = 3600
"""Longer than any client keeps an idle connection: a server that closes first races with the client's next request."""
MAX_HEAD = 1 << 20
"""Bytes of a request before its body; more than is read at once."""
MAX_AHEAD = 64
"""Requests that a client may send before the answer to the one in hand; no harness sends any."""
MAX_CONNECTIONS = 128
"""Of one socket; a harness with ten sub-agents needs a dozen."""


@dataclass(eq=False)
class Connection:
    """What a handler may learn of its connection."""

    on_broken: Callable[[], None] | None = None
    """Called when it ends by a reset, not by the client's orderly close."""
    break_off: Callable[[], None] = lambda: None
    """Ends it once what was written is sent; a response that has no end yet never gets one."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has gone away."""
    ended: Callable[[], bool] = lambda: False
    """Whether the client has gone away, even if the loop has not heard of it yet."""
    listen: Callable[[], None] = lambda: None
    """Goes on reading after a large body, so that it is heard when the client leaves."""


class SocketServer:
    """Serves one ASGI application; `scope["state"]` holds the state given with the socket, and `connection`."""

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # what a client sends wrong, or does not wait for, is answered or noted, not logged
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._protocol = _watched(self._config.http_protocol_class)

    async def serve(self, listener: socket.socket, state: dict[str, Any]) -> "ServedSocket":
        """Serve a listening socket until the result is closed; it owns the socket from now on."""
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            # Connections inherit it. asyncio sets it only on sockets made with an explicit protocol number; without it
            # an answer in two writes waits 40 ms for the client's delayed acknowledgement.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shared = ServerState()
        loop = asyncio.get_running_loop()

        def connect() -> asyncio.Protocol:
            connection = Connection()
            own = state | {"connection": connection}
            protocol: Any = self._protocol(config=self._config, server_state=shared, app_state=own, _loop=loop)
            connection.break_off = lambda: protocol.transport.close()
            connection.ended = lambda: _ended(protocol.transport)
            connection.listen = lambda: protocol.flow.resume_reading()
            made: asyncio.Protocol = protocol
            return made

        return ServedSocket(await loop.create_server(connect, sock=listener), shared)


def _ended(transport: asyncio.Transport) -> bool:
    """Asked of the kernel: a connection may have ended since the loop was told of its sockets."""
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


class ServedSocket:
    """One socket that is being served."""

    def __init__(self, server: asyncio.Server, state: ServerState) -> None:
        self._server, self._state = server, state

    async def close(self) -> None:
        """Stop listening, break every connection, wait until all handlers have ended. Idempotent."""
        self._server.close()
        while self._state.connections or self._state.tasks:
            for connection in list(self._state.connections):
                transport: Any = connection.transport
                transport.abort()
            if self._state.tasks:
                await asyncio.wait(set(self._state.tasks), timeout=1)
            else:
                await asyncio.sleep(0)


def _watched(base: Any) -> Any:
    """uvicorn's protocol class within bounds, telling the handler how its connection ended."""

    class WatchedProtocol(base):  # type: ignore[misc]
        head = 0
        """Bytes of a request that has not begun yet."""
        rested = 0.0
        """When the client sent something last."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.rested = self.loop.time()
            held = [other for other in self.connections if not other.transport.is_closing()]
            if len(held) > MAX_CONNECTIONS:
                resting = [other for other in held if other is not self and not other.in_hand]
                min(resting, key=lambda other: other.rested, default=self).transport.abort()

        @property
        def in_hand(self) -> bool:
            """Whether a request is arriving or being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            arriving = before is not None and before.more_body
            self.rested = self.loop.time()
            super().data_received(data)
            self.head = 0 if arriving or self.cycle is not before else self.head + len(data)
            if len(getattr(self, "pipeline", ())) > MAX_AHEAD:
                self.transport.abort()
            elif self.head > MAX_HEAD and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

        def eof_received(self) -> bool:
            """Whether the connection stays open, for the answer to a request that has wholly arrived."""
            self.app_state["connection"].left.set()
            if not self.in_hand or self.cycle.more_body or self.cycle.response_started:
                return False
            self.cycle.keep_alive = False
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connection: Connection = self.app_state["connection"]
            connection.left.set()
            if exc is not None and connection.on_broken is not None:
                connection.on_broken()

    return WatchedProtocol
