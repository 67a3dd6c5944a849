"""One HTTP server in this process for sockets that come and go.

Each trial hands in a listening socket of its own (inside its sandbox's network), served by uvicorn's protocol class
with one shared configuration and one application; the socket decides which session a request belongs to. Invariant:
after `close` nothing of a socket is left: no listener, connection or task.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.server import ServerState

KEEP_ALIVE_S = 3600
"""Longer than any client keeps an idle connection: a server that closes first races with the client's next request."""


@dataclass(eq=False)
class Connection:
    """What a handler may learn of its connection."""

    on_broken: Callable[[], None] | None = None
    """Called when it ends by a reset, not by the client's orderly close."""
    break_off: Callable[[], None] = lambda: None
    """Ends it once what was written is sent; a response that has no end yet never gets one."""


class SocketServer:
    """Serves one ASGI application; `scope["state"]` holds the state given with the socket, and `connection`."""

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",  # what a client sends wrong is answered, not logged
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
            made: asyncio.Protocol = protocol
            return made

        return ServedSocket(await loop.create_server(connect, sock=listener), shared)


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
    """uvicorn's protocol class, telling the handler when a connection was reset."""

    class WatchedProtocol(base):  # type: ignore[misc]
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            connection: Connection = self.app_state["connection"]
            if exc is not None and connection.on_broken is not None:
                connection.on_broken()

    return WatchedProtocol
