"""The engine's end of the way from a sandbox's loopback to the proxy, and of its life (see inpod/relay).

Invariants: a port of the sandbox is a socket in a folder of this process's user, and each connection in the sandbox is
one more to it; no port is opened between machines. While this end speaks the relay lives; when the stream breaks the
sandbox is lost, and `lost` says why.
"""

import asyncio
import contextlib
import secrets
import socket
from pathlib import Path

from engine.core.errors import SandboxError
from engine.sandbox.podman_pool.exec import OUT, frames
from engine.sandbox.remote.within.streams import FrameError, Kind, Mux, Stream, carry

_ANSWER_S = 30.0
_SETTLE_S = 10.0
_BACKLOG = 128
_HEARD = 1000
"""Attempts that are kept."""


class Way:
    """One sandbox's."""

    def __init__(
        self, name: str, folder: Path, lease_s: float, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self._name, self._folder, self._lease_s = name, folder, lease_s
        self._reader, self._writer = stream
        self._mux = Mux(self._send, self._serve, self._accept)
        self._paths: dict[int, Path] = {}
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._pongs: dict[int, asyncio.Future[None]] = {}
        self._pings = 0
        self._heard: dict[str, None] = {}
        self._said = b""
        self.lost: str | None = None
        """Why it broke; None: it has not."""
        self.over = asyncio.Event()
        """Set when it is lost or closed."""
        self._tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._live())]

    # ------------------------------------------------------------ what a sandbox asks for

    async def listen(self, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the sandbox. Raises SandboxError."""
        if port in self._paths or self.over.is_set():
            why = self.lost or ("its relay is gone" if self.over.is_set() else "it is listened on already")
            raise SandboxError(f"cannot listen on port {port} in {self._name}: {why}")
        path = self._paths[port] = self._folder / secrets.token_hex(8)
        answer = self._answers[port] = asyncio.get_running_loop().create_future()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            self._mux.put(Kind.LISTEN, port)
            problem = await asyncio.wait_for(answer, _ANSWER_S)
            if problem:
                raise SandboxError(f"cannot listen on port {port} in {self._name}: {problem}")
        except BaseException as error:
            listener.close()
            self._paths.pop(port).unlink(missing_ok=True)
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the relay of {self._name} does not answer") from error
            if isinstance(error, OSError):  # a path that is too long for a socket, for example
                raise SandboxError(f"cannot listen for {self._name} at {path}: {error}") from error
            raise
        finally:
            self._answers.pop(port, None)
        return listener

    async def settle(self) -> bool:
        """Wait until all that the relay had heard is told; whether it answered."""
        if self.over.is_set():
            return False
        self._pings += 1
        number, pong = self._pings, asyncio.get_running_loop().create_future()
        self._pongs[number] = pong
        self._mux.put(Kind.PING, number)
        try:
            await asyncio.wait_for(pong, _SETTLE_S)
        except TimeoutError:
            return False
        finally:
            self._pongs.pop(number, None)
        return not self.over.is_set()

    def denied(self) -> list[str]:
        """What was tried in vain since the last call."""
        heard, self._heard = self._heard, {}
        return list(heard)

    def lose(self, reason: str) -> None:
        """The sandbox is lost; the first reason stays."""
        if not self.over.is_set():
            self.lost = reason
            self._finish()

    async def close(self) -> None:
        """End it, and with it the relay; safe to call again."""
        self._finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._mux.close()
        for path in self._paths.values():
            path.unlink(missing_ok=True)

    def _finish(self) -> None:
        self.over.set()
        self._writer.transport.abort()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(self.lost or "its relay is gone")
        for pong in self._pongs.values():
            if not pong.done():
                pong.set_result(None)

    # ------------------------------------------------------------ the stream

    async def _read(self) -> None:
        why = "its relay ended"
        try:
            async for which, piece in frames(self._reader):
                if which == OUT:
                    self._mux.take(piece)
                else:
                    self._said = (self._said + piece)[-4096:]
        except (OSError, EOFError) as error:
            why = f"the connection to its relay broke ({error or type(error).__name__})"
        except FrameError as error:
            why = f"its relay does not keep to the rules ({error})"
        said = self._said.decode(errors="replace").strip().splitlines()
        self.lose(f"{why}: {said[-1][:300]}" if said else why)

    async def _write(self) -> None:
        with contextlib.suppress(OSError):  # whoever reads tells why
            await self._mux.run()

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 4)
            self._mux.put(Kind.PING, 0)

    async def _send(self, batch: bytes) -> None:
        self._writer.write(batch)
        await self._writer.drain()

    def _serve(self, kind: Kind, number: int, payload: bytes) -> None:
        if kind is Kind.ANSWER:
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result(payload.decode(errors="replace"))
        elif kind is Kind.HEARD and len(self._heard) < _HEARD:
            self._heard[payload.decode(errors="replace")] = None
        elif kind is Kind.PONG:
            pong = self._pongs.get(number)
            if pong is not None and not pong.done():
                pong.set_result(None)

    async def _accept(self, stream: Stream, port: int) -> None:
        path = self._paths.get(port)
        try:
            if path is None:
                raise FileNotFoundError(port)
            reader, writer = await asyncio.open_unix_connection(str(path))
        except OSError:  # nobody listens any more
            stream.reset()
            return
        await carry(reader, writer, stream)
