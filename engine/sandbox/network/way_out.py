"""The engine's side of the process through which a sandbox reaches what a list allows (see sidecar): start, what it
tells, its end.

Invariants: `end` returns when the process is gone, and with it every connection, however it took leave; a process that
ended by itself, or did not say what it reached, is told of (`SandboxError`), never taken for a phase in which all went
well. What cannot be started is not there: nothing is open then.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from engine.core.errors import SandboxError
from engine.core.reach import Reach
from engine.core.threads import in_thread, to_the_end
from engine.sandbox import seccomp
from engine.sandbox.commands import memory_file
from engine.sandbox.egress import within
from engine.sandbox.network.openings import open_all

_SOURCE = str(Path(__file__).resolve().parents[3])
_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from engine.sandbox.network.sidecar import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_START_S, _END_S = 60.0, 10.0
_MESSAGE = 1 << 16
_KEPT = 2000
"""Attempts that are kept until somebody asks."""


class WayOut:
    """One such process; its life is one phase."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, reach: Sequence[str]) -> None:
        self._process, self._control = process, control
        self.reach = reach
        self.denied: list[str] = []
        """What was tried in vain since somebody took it away."""
        self.names: dict[str, str] = {}
        """Name → the address that it has inside."""
        self.reached: dict[str, list[int]] = {}
        """Place → connections, bytes sent, bytes received; known when it has ended."""
        self._said_end = self._ready = False
        self._heard = asyncio.Event()
        asyncio.get_running_loop().add_reader(control, self._hear)

    @classmethod
    async def open(
        cls, namespace: int, reach: Sequence[str], names: Mapping[str, str], hosts: Mapping[str, Sequence[str]]
    ) -> Self:
        """Start one for a network namespace (a descriptor). `names`: those that have an address already; `hosts`:
        names that are not looked up. Raises SandboxError."""
        try:
            sockets = await in_thread(within, namespace, lambda: open_all(Reach(reach).ports))
        except OSError as error:
            raise SandboxError(f"nothing can listen in its network: {error.strerror}") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        given = [theirs, *(one for some in sockets.values() for one in some)]
        wanted = {
            "reach": list(reach),
            "names": dict(names),
            "hosts": {name: list(addresses) for name, addresses in hosts.items()},
            "sockets": {kind: [one.fileno() for one in some] for kind, some in sockets.items()},
            "seccomp": seccomp.program(executes=False).hex(),
            "parent": os.getpid(),
        }
        way_out: Self | None = None
        try:
            with tempfile.TemporaryFile() as said:
                way_out = await to_the_end(cls._start(wanted, ours, given, said.fileno()))
                await way_out._until_ready(said.fileno())
        except BaseException:
            if way_out is None:
                ours.close()
            else:
                await to_the_end(way_out._kill())
            raise
        finally:
            for one in given:
                one.close()
        return way_out

    @classmethod
    async def _start(
        cls,
        wanted: Mapping[str, Any],
        ours: socket.socket,
        given: Sequence[socket.socket],
        said: int,
    ) -> Self:
        """`given`: the other end of `ours`, and what it serves."""
        with memory_file(json.dumps(wanted).encode(), 0) as request:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-B", "-c", _RUN, _SOURCE, str(request), str(given[0].fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(request, *(one.fileno() for one in given)),
                env={},
                cwd="/",
                start_new_session=True,
            )
        return cls(process, ours, wanted["reach"])

    async def _until_ready(self, said: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while not self._ready and self._control.fileno() >= 0:
                    self._heard.clear()
                    await self._heard.wait()
        if not self._ready:
            text = os.pread(said, 1 << 16, 0).decode(errors="replace").strip().splitlines()
            raise SandboxError(f"its way out does not start: {text[-1] if text else 'it said nothing'}")

    @property
    def pid(self) -> int:
        """Host process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still serves, as far as is known."""
        return self._control.fileno() >= 0 and self._process.returncode is None

    def take_denied(self) -> list[str]:
        """What was tried in vain since the last call, in order."""
        self._hear()
        taken, self.denied = self.denied, []
        return taken

    async def end(self) -> None:
        """End it and all that goes through it. Raises SandboxError where it had not lasted until then."""
        try:
            with contextlib.suppress(OSError):
                self._control.send(b"end")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    while not self._said_end and self._control.fileno() >= 0:
                        self._heard.clear()
                        await self._heard.wait()
        finally:
            await to_the_end(self._kill())
        if not self._said_end:
            raise SandboxError("the process through which it reached the network had ended, or did not answer")

    async def _kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._hear()
        self._close()

    def _close(self) -> None:
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        self._heard.set()

    def _hear(self) -> None:
        """Take in what it has told."""
        if self._control.fileno() < 0:
            return
        try:
            while True:
                message = self._control.recv(_MESSAGE)
                if not message:
                    break
                self._note(json.loads(message))
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, AttributeError):  # it is gone, or out of its mind
            pass
        self._close()

    def _note(self, event: Mapping[str, object]) -> None:
        if "denied" in event and len(self.denied) < _KEPT:
            self.denied.append(str(event["denied"]))
        elif "name" in event:
            self.names[str(event["name"])] = str(event["address"])
        elif "ready" in event:
            self._ready = True
        elif isinstance(ended := event.get("ended"), dict):
            self._said_end, self.reached = True, ended
        self._heard.set()
