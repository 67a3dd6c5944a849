"""One process in a container, over the API's websocket: what it is given, what it writes, how it ended.

The channels are Kubernetes' own: the first byte of a message says which (0 in, 1 out, 2 errors, 3 the end). Invariant:
an end is only what the server said on channel 3; a stream that stops without it is `Cut`, never an exit code. URLs are
written to audit logs by servers, so nothing of a trial stands in one.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from engine.core.errors import SandboxError
from engine.sandbox.kubernetes.api import Api, ApiError
from engine.sandbox.remote.execution import Cut, Ended

PROTOCOLS = (Subprotocol("v5.channel.k8s.io"), Subprotocol("v4.channel.k8s.io"))
_IN, _OUT, _ERRORS, _END = range(4)
_CHUNK = 1 << 16
_OPEN_S = 30.0
_PING_S, _PONG_S = 30.0, 120.0
_PATIENCE_S = 60.0
_AGAIN = frozenset({429, 502, 503, 504})
"""Nothing has been executed yet when the server answers so."""


class PodExecution:
    """The Execution of remote sandboxes, in a pod."""

    def __init__(self, connection: ClientConnection, on_output: Callable[[bytes], object] | None) -> None:
        """`on_output` is handed the standard output as it comes, which is then not kept."""
        self._connection, self._on_output = connection, on_output
        self._output, self._errors = bytearray(), bytearray()

    async def send(self, contents: bytes) -> None:
        """Give it more standard input; what has ended takes none, which is no error."""
        with contextlib.suppress(ConnectionClosed):
            for start in range(0, len(contents), _CHUNK):
                await self._connection.send(bytes([_IN]) + contents[start : start + _CHUNK])

    async def send_all(self, pieces: AsyncIterable[bytes]) -> None:
        async for piece in pieces:
            await self.send(piece)

    async def ended(self) -> Ended:
        """Wait for its end. Raises Cut, and SandboxError where it never ran."""
        status: Mapping[str, Any] | None = None
        try:
            async for message in self._connection:
                body = message.encode() if isinstance(message, str) else message
                channel, content = body[0] if body else -1, body[1:]
                if channel == _OUT and self._on_output is not None:
                    self._on_output(content)
                elif channel == _OUT:
                    self._output += content
                elif channel == _ERRORS:
                    self._errors += content
                elif channel == _END and content:
                    status = json.loads(content)
        except (ConnectionClosed, ValueError) as error:
            if status is None:
                raise Cut(f"the connection to a command was cut off ({type(error).__name__})") from error
        if status is None:
            raise Cut("the connection to a command was cut off")
        return Ended(exit_code=_exit_code(status), output=bytes(self._output), errors=bytes(self._errors))

    async def close(self) -> None:
        """Let go of it; safe to call again."""
        self._connection.transport.abort()
        await self._connection.wait_closed()


async def start(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    on_output: Callable[[bytes], object] | None = None,
) -> PodExecution:
    """Start a process. Raises ApiError where the server refuses."""
    query = [("container", container), *(("command", word) for word in command)]
    query += [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    address = f"ws{api.access.server.removeprefix('http')}"
    url = f"{address}/api/v1/namespaces/{namespace}/pods/{pod}/exec?{urlencode(query)}"
    deadline, pause, refused = time.monotonic() + _PATIENCE_S, 0.25, False
    while True:
        try:
            return PodExecution(await _connect(api, url), on_output)
        except InvalidStatus as error:
            status, asked = error.response.status_code, error.response.headers.get("Retry-After", "")
            problem = ApiError(status, f"the cluster's API refuses a command in {pod} ({status}): {_said(error)}")
            if status == 401 and not refused and api.access.refuse():
                refused = True
                continue
            if status not in _AGAIN:
                raise problem from error
            wait = float(asked) if asked.isdigit() else pause
        except (OSError, InvalidHandshake) as error:
            problem, wait = ApiError(0, f"the cluster's API does not start a command in {pod}: {error}"), pause
        if time.monotonic() + wait > deadline:
            raise problem
        await asyncio.sleep(wait)
        pause = min(pause * 2, 5.0)


async def _connect(api: Api, url: str) -> ClientConnection:
    more: dict[str, Any] = {"ssl": api.context} if api.context is not None else {}
    if api.access.proxy is not None:
        more["proxy"] = api.access.proxy
    if api.access.server_name is not None:
        more["server_hostname"] = api.access.server_name
    return await connect(
        url,
        additional_headers=await api.access.headers(),
        subprotocols=PROTOCOLS,
        compression=None,
        max_size=None,
        open_timeout=_OPEN_S,
        ping_interval=_PING_S,
        ping_timeout=_PONG_S,
        **more,
    )


def _said(error: InvalidStatus) -> str:
    text = (error.response.body or b"").decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        text = str(json.loads(text)["message"])
    return " ".join(text.split())[:300]


def _exit_code(status: Mapping[str, Any]) -> int:
    """Raises SandboxError where the container's runtime could not start it, or lost it."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise SandboxError(f"a command could not be run: {' '.join(str(status.get('message')).split())[:300]}")
