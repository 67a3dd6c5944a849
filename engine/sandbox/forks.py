"""The engine's end of a process that forks into sandboxes (see fork_server): a warm process, or the porter.

Invariant: when `stop` or a `fork` that raised Lost has returned, the process has ended, with all that it forked.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence

from engine.core.errors import SandboxError
from engine.core.processes import end
from engine.sandbox import porter
from engine.sandbox.capture import Capture
from engine.sandbox.commands import Forked

_FORK_S = 30.0
_START_S = 30.0
_OUTPUT_LIMIT = 1 << 16


class Lost(Exception):
    """A process that ended or hangs; it is ended now."""


class ForkServer:
    """One such process; it is started once."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._output = Capture(_OUTPUT_LIMIT, 0)
        self._messages, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._messages.setblocking(False)

    @property
    def control(self) -> int:
        """The descriptor of the socket that its command names, until it is started."""
        return self._theirs.fileno()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None and self._messages.fileno() >= 0

    async def start(self, command: Sequence[str], passed: Sequence[int], patience_s: float) -> bool:
        """Start it and wait until it is ready; False: it ended instead. Raises TimeoutError."""
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._output.write,
            stderr=self._output.write,
            pass_fds=(self.control, *passed),
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._theirs.close()
        self._output.started()
        answer, _ = await self._receive(patience_s)
        return answer == b"ready"

    async def fork(self, descriptors: Sequence[int]) -> Forked:
        """Fork a process over these descriptors. Raises Lost, or SandboxError when it lives but cannot."""
        async with self._lock:
            try:
                socket.send_fds(self._messages, [b"fork"], descriptors)
                answer, received = await self._receive(_FORK_S)
            except (OSError, TimeoutError):
                answer, received = b"", []
            if received:
                return Forked(received[0])
            if answer:
                raise SandboxError(f"no process can be forked: {answer.decode()}")
            await asyncio.shield(self._end())
            self._close()
            raise Lost(self.last_line())

    async def stop(self) -> None:
        """End it with all that it forked; safe to call again."""
        await self._end()  # which wakes whoever waits for an answer
        async with self._lock:
            self._close()

    def last_line(self) -> str:
        """Of what it wrote."""
        lines = self._output.finish().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:500] if lines else "it ended without a word"

    async def _end(self) -> None:
        if self._process is not None:
            await end(self._process)

    def _close(self) -> None:
        self._messages.close()
        self._theirs.close()
        self._output.finish()

    async def _receive(self, timeout_s: float) -> tuple[bytes, list[int]]:
        """The next message; empty when it has ended."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._messages, readable.set)
        try:
            await asyncio.wait_for(readable.wait(), timeout_s)
        finally:
            loop.remove_reader(self._messages)
        try:
            answer, received, _, _ = socket.recv_fds(self._messages, 4096, 1)
        except ConnectionError:
            return b"", []
        return answer, received


class Porter:
    """The process of a runtime that forks for every cold command; started when first needed, and again when lost."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()

    async def fork(self, descriptors: Sequence[int]) -> Forked:
        """A new process that enters the sandbox given by `descriptors` and executes there. Raises SandboxError."""
        try:
            return await (await self._ready()).fork(descriptors)
        except Lost:  # what it may have forked died with it
            try:
                return await (await self._ready()).fork(descriptors)
            except Lost as error:
                raise SandboxError(f"the process that enters sandboxes was lost twice: {error}") from error

    async def stop(self) -> None:
        """End it; safe to call again."""
        async with self._starting:
            server, self._server = self._server, None
            if server is not None:
                await server.stop()

    async def _ready(self) -> ForkServer:
        async with self._starting:
            if self._server is not None and self._server.alive:
                return self._server
            if self._server is not None:
                await self._server.stop()
            self._server = server = ForkServer()
            command = (sys.executable, "-I", "-S", porter.__file__, str(server.control), str(os.getpid()))
            try:
                if await server.start(command, (), _START_S):
                    return server
            except TimeoutError:
                pass
            await server.stop()
            raise SandboxError(f"the process that enters sandboxes does not start: {server.last_line()}")
