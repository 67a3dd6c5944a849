"""The two containers of one sandbox on a podman host, as a remote sandbox wants them.

Invariant: the sandbox lives while its relay's stream does (see way). Commands and files enter the task's container as
its root, whom the agent can neither signal nor trace; process 1 kills all others when it is told to, and stays, so that
files can be had. Where even that fails the container is killed and begun anew: what it wrote is in its layer.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import SandboxError
from engine.sandbox.files import parts
from engine.sandbox.podman_pool.api import MISSING, Api, ApiError, Unreachable
from engine.sandbox.podman_pool.exec import start
from engine.sandbox.podman_pool.way import Way
from engine.sandbox.remote.execution import Cut, Execution
from engine.sandbox.remote.fate import Fate

_END_S = 30.0
_POLL_S = 0.1
_ASKED = 4
"""How often process 1 is asked how many it killed."""
_ENTERABLE = ("running", "paused")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the runtime hands over when it has made the containers."""

    name: str
    """Of the sandbox."""
    container: str
    interpreter: tuple[str, ...]
    api: Api
    way: Way
    remove: Callable[[], Coroutine[Any, Any, None]]
    """Removes both and waits until they are gone."""


class PoolPlace:
    """The Place of podman's hosts."""

    kind = "a sandbox on a podman host"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ended: Fate | None = None
        """Once its processes are, by us or not."""

    def fate(self) -> Fate:
        """Lost with the relay's stream; over when its processes have been ended."""
        if self._parts.way.over.is_set():
            return Fate(state="lost", reason=self._parts.way.lost or "it was stopped")
        return self._ended or Fate(state="ready", reason="")

    async def until(self, holds: Callable[[], bool], patience_s: float | None) -> bool:
        """Wait until `holds`. Without an end to its patience it waits for the loss alone: a command tells the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not holds():
                    if patience_s is None:
                        await self._parts.way.over.wait()
                        break
                    await self._look()
                    if not holds():
                        await asyncio.sleep(_POLL_S)
        return holds()

    async def start(self, role: Sequence[str], on_output: Callable[[bytes], object] | None) -> Execution:
        """Start a process of ours in the task's container. Raises SandboxError."""
        fate = self.fate()
        if fate.state == "lost":
            raise SandboxError(f"sandbox {self._parts.name} is gone: {fate.reason}")
        command = [*self._parts.interpreter, *role]
        try:
            return await start(self._parts.api, self._parts.container, command, on_output)
        except ApiError as error:
            await self._look()
            if self.fate().state != "over" or role[0] != "keep":
                raise self._gone(error) from error
        await self._begin_anew()
        return await start(self._parts.api, self._parts.container, command, on_output)

    def check(self, path: str) -> None:
        """Any path may be written, but none that leads upwards."""
        parts(path)

    async def listen(self, port: int) -> socket.socket:
        """A listening socket that stands for 127.0.0.1:port in the sandbox. Raises SandboxError."""
        return await self._parts.way.listen(port)

    async def settle(self) -> None:
        """Wait until the relay has told what it heard."""
        await self._parts.way.settle()

    def denied(self) -> list[str]:
        """What was tried in vain since the last call."""
        return self._parts.way.denied()

    async def end(self) -> int:
        """Have process 1 kill all others; where it does not, kill the container. Raises SandboxError."""
        await self.settle()
        try:
            async with asyncio.timeout(_END_S):
                count = await self._swept()
        except (SandboxError, TimeoutError, ValueError):
            await self._look()
            if self.fate().state == "ready":
                await self._call("kill", {"signal": "KILL"})
            count = 0
        self._ended = self._ended or Fate(state="over", reason="it was killed")
        return count

    async def remove(self) -> None:
        """Remove both containers. Raises SandboxError."""
        await self._parts.way.close()
        await self._parts.remove()

    # ------------------------------------------------------------ steps

    async def _swept(self) -> int:
        await self._call("kill", {"signal": "USR1"})
        self._ended = Fate(state="over", reason="it was killed")
        command = [*self._parts.interpreter, "keep", "ended"]
        for _ in range(_ASKED):
            told = await start(self._parts.api, self._parts.container, command, None)
            try:
                ended = await told.ended()
            finally:
                await told.close()
            if ended.exit_code == 0:
                return int(ended.output)  # else it was among those that were killed
        raise Cut(f"process 1 does not tell its end ({ended.exit_code})")

    async def _call(self, action: str, query: dict[str, str]) -> None:
        await self._parts.api.call("POST", f"/containers/{self._parts.container}/{action}", query=query)

    async def _look(self) -> None:
        """What the host says of the task's container."""
        if self._ended is not None or self.fate().state == "lost":
            return
        try:
            told = await self._parts.api.call("GET", f"/containers/{self._parts.container}/json")
        except ApiError as error:
            if error.status == MISSING:
                self._parts.way.lose("its container was removed")
            return
        except Unreachable:
            return  # whoever watches the host says when that is too long
        state = told["State"]
        if state["Status"] not in _ENTERABLE:
            oom, code = bool(state.get("OOMKilled")), int(state.get("ExitCode") or 0)
            reason = "its container ran out of memory" if oom else f"its container ended ({code})"
            self._ended = Fate(state="over", reason=reason, oom=oom, exit_code=code)

    async def _begin_anew(self) -> None:
        """For its files: process 1 alone, over the same layer."""
        try:
            await self._call("wait", {"condition": "stopped"})
            await self._call("start", {})
        except SandboxError as error:
            raise SandboxError(f"the files of {self._parts.name} cannot be reached: {error}") from error

    def _gone(self, error: SandboxError) -> SandboxError:
        fate = self.fate()
        if fate.state not in ("over", "lost"):
            return error
        return SandboxError(f"sandbox {self._parts.name} is gone: no command can run in it: {fate.reason}")
