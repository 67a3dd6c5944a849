"""One process in a container, over the connection that podman's exec call becomes.

Both outputs come in frames of podman's: which of them, three bytes of nothing, a length, so many bytes. Invariant: an
exit code is what the service says of the exec afterwards; a stream that stops when it says nothing, or that the process
still runs, is `Cut`.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence

from engine.core.errors import SandboxError
from engine.sandbox.podman_pool.api import Api
from engine.sandbox.remote.execution import Cut, Ended

OUT, ERRORS = 1, 2
_HEADER = struct.Struct(">B3xI")
_CHUNK = 1 << 16
_TELL_S = 5.0
_PAUSE_S = 0.01
_STRAY = -1


class PodmanExecution:
    """The Execution of remote sandboxes, on a podman host."""

    def __init__(
        self,
        api: Api,
        session: str,
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_output: Callable[[bytes], object] | None,
    ) -> None:
        """`on_output` is handed the standard output as it comes, which is then not kept."""
        self._api, self._session, self._on_output = api, session, on_output
        self._reader, self._writer = stream
        self._output, self._errors = bytearray(), bytearray()

    async def send(self, contents: bytes) -> None:
        """Give it more standard input; what has ended takes none, which is no error."""
        with contextlib.suppress(OSError):
            for start in range(0, len(contents), _CHUNK):
                self._writer.write(contents[start : start + _CHUNK])
                await self._writer.drain()

    async def send_all(self, pieces: AsyncIterable[bytes]) -> None:
        async for piece in pieces:
            await self.send(piece)

    async def ended(self) -> Ended:
        """Wait for its end. Raises Cut."""
        try:
            async for which, piece in frames(self._reader):
                if which == OUT and self._on_output is not None:
                    self._on_output(piece)
                elif which == OUT:
                    self._output += piece
                else:
                    self._errors += piece
            code = await self._exit_code()
        except (OSError, EOFError, SandboxError) as error:
            raise Cut(f"the connection to a command was cut off ({_line(error)})") from error
        return Ended(exit_code=code, output=bytes(self._output), errors=bytes(self._errors))

    async def _exit_code(self) -> int:
        """The service notes it a moment after the stream has ended."""
        deadline = asyncio.get_running_loop().time() + _TELL_S
        while True:
            told = await self._api.call("GET", f"/exec/{self._session}/json")
            if not told["Running"] and int(told["ExitCode"]) != _STRAY:
                return int(told["ExitCode"])
            if asyncio.get_running_loop().time() > deadline:
                raise SandboxError("nobody says how it ended")
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Let go of it; safe to call again."""
        self._writer.transport.abort()


async def start(
    api: Api, container: str, command: Sequence[str], on_output: Callable[[bytes], object] | None
) -> PodmanExecution:
    """Start a process as the container's root. Raises Unreachable, ApiError."""
    body = {
        "Cmd": list(command),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "User": "0:0",
        "WorkingDir": "/",
    }
    session = str((await api.call("POST", f"/containers/{container}/exec", body=body))["Id"])
    stream = await api.hijack(f"/exec/{session}/start", {}, {"Detach": False, "Tty": False})
    return PodmanExecution(api, session, stream, on_output)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Which output, and a piece of it, until the stream ends. Raises OSError, EOFError where it is broken off."""
    while True:
        try:
            head = await reader.readexactly(_HEADER.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return
        which, length = _HEADER.unpack(head)
        while length:
            piece = await reader.read(min(length, _CHUNK))
            if not piece:
                raise EOFError("in the middle of a frame")
            length -= len(piece)
            yield which, piece


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
