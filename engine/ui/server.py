"""Serves the pages on this machine's loopback until it is cancelled.

Invariant: nothing listens on any other address; after the end nothing listens. Refuses (ConfigError) a port that it
cannot have.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from engine.core.errors import ConfigError
from engine.ui.app import build_app
from engine.ui.guard import PARAMETER

ADDRESS = "127.0.0.1"
_GRACE_S = 2
"""Seconds that answers on their way are waited for at the end."""


async def serve(root: Path, port: int, say: Callable[[str], None]) -> None:
    """Show the runs under `root`; `say` hears the address, with its token, once it can be opened."""
    listener = _listen(port)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(32)
    # Cookies are not told apart by port: two of these side by side must not take each other's.
    server = _Server(_config(build_app(root, token, f"lego-rl-{port}")))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    say(f"http://{ADDRESS}:{port}/?{PARAMETER}={token}")
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving
        listener.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        way_out = "end what listens there, set another port, or 0 for any that is free"
        raise ConfigError("job.port", port, f"{ADDRESS}:{port} cannot be had: {error.strerror}", way_out) from error
    listener.setblocking(False)
    return listener


def _config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )


class _Server(uvicorn.Server):
    """Signals stay the program's own: they cancel the job, and that ends the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
