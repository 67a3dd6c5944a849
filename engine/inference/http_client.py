"""HTTP/1.1 to one server that this machine runs: what sampling needs and no more.

A general client takes longer for one request than the proxy has for all of it: with httpx in this one's place a request
took the whole proxy 1.9 times the processor time (2.9 times with 32 at once), a streamed one 2.0 times (3.7 times).
Connections are kept alive and serve one request at a time; a call that is cancelled breaks its connection off, so that
the server stops working for it. Invariant: a body is whole, or ConnectionError is raised; nothing is tried again here.
No redirects, compression, proxies or TLS: the server is this run's own.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httptools

CONNECT_S = 10.0

OnBody = Callable[[bytes], None]
"""Takes a piece of a body as it comes."""


class HttpClient:
    """Posts JSON to a Unix socket or a loopback port."""

    def __init__(self, socket: Path | None, port: int | None, kept: int) -> None:
        """`kept`: connections that are kept when idle."""
        self._socket, self._port, self._kept = socket, port, kept
        self._idle: list[_Connection] = []
        self._used: set[_Connection] = set()

    async def post(self, path: str, body: bytes, on_body: OnBody | None = None) -> tuple[int, bytes]:
        """(status, body); with `on_body` the body of a 200 is handed over in pieces and not returned.

        Raises ConnectionError, TimeoutError (only while connecting), and what `on_body` raises."""
        connection = self._take() or await self._connect()
        self._used.add(connection)
        try:
            answer = await connection.ask(path, body, on_body)
        except BaseException:
            connection.abort()
            raise
        finally:
            self._used.discard(connection)
        if connection.reusable and len(self._idle) < self._kept:
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def close(self) -> None:
        """Break off every connection. Idempotent."""
        for connection in (*self._idle, *self._used):
            connection.abort()
        self._idle.clear()

    def _take(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._socket is not None:
                    return (await loop.create_unix_connection(_Connection, str(self._socket)))[1]
                return (await loop.create_connection(_Connection, "127.0.0.1", self._port or 0))[1]
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(f"no connection: {error}") from error


class _Connection(asyncio.Protocol):
    """One connection; it is also what its parser calls back."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._on_body: OnBody | None = None
        self._pieces: list[bytes] = []
        self._stays = True

    @property
    def reusable(self) -> bool:
        return self._stays and not self._transport.is_closing()

    async def ask(self, path: str, body: bytes, on_body: OnBody | None) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._parser, self._on_body, self._pieces = httptools.HttpResponseParser(self), on_body, []
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._transport.writelines((head.encode(), body))
        return await self._answer

    def abort(self) -> None:
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._stays = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # ------------------------------------------------------------ asyncio's calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self._stays = False  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            problem = error.__context__ or error  # what a callback raised, or the parser itself
            told = problem if isinstance(problem, Exception) else error
            broken = isinstance(told, httptools.HttpParserError)
            self._fail(ConnectionError(f"no HTTP answer: {told}") if broken else told)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(str(exc) if exc else "the server closed the connection"))

    # ------------------------------------------------------------ the parser's calls

    def on_body(self, data: bytes) -> None:
        if self._on_body is not None and self._parser.get_status_code() == 200:
            self._on_body(data)
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._stays = self._stays and self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._pieces)))
