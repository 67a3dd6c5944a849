"""The engine's end of the way from pods to the proxy: one port for all relays of a run (see inpod/relay).

A relay's first connection is its control line; each connection that it takes in its pod becomes one more here, which is
joined to the listening socket that `listen` made. That socket lies in a folder of this process's user: nothing but the
relay that holds its sandbox's token gets to it.
Refuses whoever names no token that it gave out; since pods share their network with the agent, strangers are expected:
each address may have a few connections that have not said who they are, for a short time.
"""

import asyncio
import contextlib
import secrets
import socket
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.temporary import temporary_folder
from engine.sandbox.kubernetes.inpod.relay import pump

_HELLO_S = 10.0
_ANSWER_S = 30.0
_STRANGERS = 16
_LINE = 256
_BACKLOG = 128


@dataclass(kw_only=True)
class _Relay:
    """One sandbox's."""

    name: str
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    writer: asyncio.StreamWriter | None = None
    paths: dict[int, Path] = field(default_factory=dict)
    """Port in the pod → socket here."""
    answers: dict[int, asyncio.Future[str]] = field(default_factory=dict)
    """Port → the relay's answer; empty text: bound."""


class RelayGateway:
    """Listens for relays."""

    def __init__(self, bind: str, port: int) -> None:
        self._bind, self._port = bind, port
        self._relays: dict[str, _Relay] = {}
        self._strangers: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stack = ExitStack()
        self._folder = Path()

    @property
    def port(self) -> int:
        """The real one, once it is started."""
        return self._port

    async def start(self) -> None:
        """Raises SandboxError where the port cannot be had."""
        try:
            self._server = await asyncio.start_server(self._take, self._bind, self._port, limit=_LINE)
        except OSError as error:
            problem = f"cannot listen on {self._bind}:{self._port} for pods: {error.strerror}"
            raise SandboxError(f"{problem}; set sandbox.gateway") from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._folder = self._stack.enter_context(temporary_folder("gateway"))

    def admit(self, name: str) -> str:
        """A token for one sandbox's relay."""
        token = secrets.token_hex(32)
        self._relays[token] = _Relay(name=name)
        return token

    async def joined(self, token: str, patience_s: float) -> None:
        """Wait for the relay. Raises SandboxError when it does not come."""
        relay = self._relays[token]
        try:
            await asyncio.wait_for(relay.joined.wait(), patience_s)
        except TimeoutError as error:
            raise SandboxError(f"the relay of {relay.name} does not reach this process: see sandbox.gateway") from error

    async def listen(self, token: str, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the pod. Raises SandboxError."""
        relay = self._relays[token]
        if port in relay.answers or port in relay.paths or relay.writer is None:
            why = "it is listened on already" if relay.writer is not None else "its relay is gone"
            raise SandboxError(f"cannot listen on port {port} in {relay.name}: {why}")
        path = self._folder / secrets.token_hex(8)
        answer = relay.answers[port] = asyncio.get_running_loop().create_future()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            relay.paths[port] = path
            relay.writer.write(f"listen {port}\n".encode())
            problem = await asyncio.wait_for(answer, _ANSWER_S)
        except BaseException as error:
            self._forget(relay, port, listener)
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the relay of {relay.name} does not answer") from error
            if isinstance(error, OSError):  # a path that is too long for a socket, for example
                raise SandboxError(f"cannot listen for {relay.name} at {path}: {error}") from error
            raise
        finally:
            relay.answers.pop(port, None)
        if problem:
            self._forget(relay, port, listener)
            raise SandboxError(f"cannot listen on port {port} in {relay.name}: {problem}")
        return listener

    def _forget(self, relay: _Relay, port: int, listener: socket.socket) -> None:
        listener.close()
        path = relay.paths.pop(port, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def dismiss(self, token: str) -> None:
        """Its sandbox is over."""
        relay = self._relays.pop(token, None)
        if relay is None:
            return
        for path in relay.paths.values():
            path.unlink(missing_ok=True)
        if relay.writer is not None:
            relay.writer.close()

    async def stop(self) -> None:
        """Close everything; safe to call again."""
        for token in tuple(self._relays):
            self.dismiss(token)
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        self._stack.close()

    # ------------------------------------------------------------ connections

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            words = await self._greeted(reader, writer)
            relay = self._relays.get(words[1]) if len(words) > 1 else None
            if relay is None:
                return
            if words[0] == "control":
                await self._control(relay, reader, writer)
            elif words[0] == "stream" and int(words[2]) in relay.paths:
                await self._join(relay.paths[int(words[2])], reader, writer)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            pass  # broken off, or no relay
        finally:
            writer.close()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[str]:
        """The words of the first line; none for a stranger too many."""
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        if self._strangers[address] >= _STRANGERS:
            return []
        self._strangers[address] += 1
        try:
            async with asyncio.timeout(_HELLO_S):
                return (await reader.readline()).decode().split()
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    async def _control(self, relay: _Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if relay.writer is not None:  # it came back before we saw it go
            relay.writer.close()
        relay.writer = writer
        writer.write(b"ok\n")
        relay.joined.set()
        try:
            while line := await reader.readline():
                word, port, *reason = line.decode().rstrip("\n").split(" ", 2)
                answer = relay.answers.get(int(port))
                if answer is not None and not answer.done():
                    answer.set_result("" if word == "bound" else " ".join(reason) or "refused")
        finally:
            if relay.writer is writer:
                relay.writer = None

    async def _join(self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(path))
        try:
            await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            with contextlib.suppress(OSError):
                back.close()
