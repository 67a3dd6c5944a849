"""One podman service's API: single calls, uploads, and the streams that a call becomes (attach, exec).

Each call has a connection of its own: a service that was started for one call ends when it has nothing to do, and a
connection that was kept would end with it. Invariant: `Unreachable` is a host that does not answer, `ApiError` one that
answers no. Podman's own client is not used: it blocks, hands out no stream, and does not check whom it meets by ssh.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from engine.core.errors import SandboxError
from engine.sandbox.podman_pool.addresses import Address
from engine.sandbox.podman_pool.tunnel import Tunnel

_BASE = "/v4.0.0/libpod"
_CONNECT_S = 15.0
_CALL_S = 120.0
_HEAD = 1 << 16
MISSING = 404
_SWITCHED = (200, 101)


class Unreachable(SandboxError):
    """The host does not answer."""


class ApiError(SandboxError):
    """The host's podman refuses."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Api:
    """The calls to one host."""

    def __init__(self, name: str, address: Address, folder: Path) -> None:
        """`folder`: of this process's user, for the near end of a tunnel."""
        self._name, self._address = name, address
        self._tunnel = Tunnel(address, folder / f"ssh-{name}") if address.ssh else None
        self._path = str(self._tunnel.socket) if self._tunnel is not None else address.path
        self._opening = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None
        self.ahead_s = 0.0
        """How far the host's clock is ahead of ours."""

    def now(self) -> float:
        """Unix time by the host's clock."""
        return time.time() + self.ahead_s

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        patience_s: float = _CALL_S,
    ) -> Any:
        """One call; what it answers, None for nothing. Raises Unreachable, ApiError."""
        content = None if body is None else json.dumps(body).encode()
        answer = await self._request(method, path, query or {}, content, patience_s)
        if not answer.is_success:
            raise ApiError(answer.status_code, self._refused(method, path, answer.status_code, answer.text))
        try:
            return answer.json() if answer.content else None
        except ValueError:
            return answer.text

    async def exists(self, kind: str, name: str) -> bool:
        """Whether the host has it. Raises Unreachable, ApiError."""
        try:
            await self.call("GET", f"/{kind}/{quote(name)}/exists")
        except ApiError as error:
            if error.status != MISSING:
                raise
            return False
        return True

    async def upload(self, path: str, query: Mapping[str, str], contents: AsyncIterator[bytes]) -> None:
        """Send a stream, whole or not at all: one that is broken off is refused by the host. Raises as `call`."""
        answer = await self._request("POST", path, query, contents, None)
        if not answer.is_success:
            raise ApiError(answer.status_code, self._refused("POST", path, answer.status_code, answer.text))

    async def hijack(
        self, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Have a call become a stream both ways. Raises Unreachable, ApiError."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"POST {_BASE}{path}{f'?{urlencode(query)}' if query else ''} HTTP/1.1\r\nHost: podman\r\n"
        head += "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_CALL_S):
                reader, writer = await self._connect()
                writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
                answer = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace")
                status = int(answer.split()[1])
                if status not in _SWITCHED:
                    said = (await reader.read(_HEAD)).decode(errors="replace")
                    raise ApiError(status, self._refused("POST", path, status, said))
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, OSError | EOFError | ValueError | IndexError | asyncio.LimitOverrunError):
                raise self._gone(error) from error
            raise
        return reader, writer

    async def close(self) -> None:
        """Safe to call again."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        if self._tunnel is not None:
            await self._tunnel.close()

    # ------------------------------------------------------------ connections

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: bytes | AsyncIterator[bytes] | None,
        patience_s: float | None,
    ) -> httpx.Response:
        await self._open()
        assert self._client is not None
        try:
            answer = await self._client.request(
                method,
                f"{_BASE}{path}",
                params=dict(query),
                content=content,
                headers={"Content-Type": "application/json" if isinstance(content, bytes) else "application/x-tar"},
                timeout=httpx.Timeout(patience_s, connect=min(_CONNECT_S, patience_s or _CONNECT_S)),
            )
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        try:
            self.ahead_s = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
        except (KeyError, TypeError, ValueError):
            self.ahead_s = 0.0
        return answer

    async def _open(self) -> None:
        """Raises Unreachable."""
        async with self._opening:
            if self._tunnel is not None and not self._tunnel.alive:
                try:
                    await self._tunnel.open()
                except SandboxError as error:
                    raise self._gone(error) from error
            if self._client is None:
                transport = httpx.AsyncHTTPTransport(
                    uds=self._path or None, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
                )
                self._client = httpx.AsyncClient(transport=transport, base_url=self._base)

    @property
    def _base(self) -> str:
        if self._path:
            return "http://podman"
        host = self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._address.port}"

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self._open()
        if self._path:
            return await asyncio.open_unix_connection(self._path)
        return await asyncio.open_connection(self._address.host, self._address.port)

    def _gone(self, error: BaseException) -> Unreachable:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return Unreachable(f"podman on {self._name} does not answer: {reason}")

    def _refused(self, method: str, path: str, status: int, text: str) -> str:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = str(json.loads(text[text.index("{") :])["message"])
        return f"podman on {self._name} refuses {method} {path} ({status}): {' '.join(text.split())[:500]}"
