"""Processes that enter a sandbox and run one command there, as the host sees them: to be waited for and to be killed.

Two kinds with the same life: started cold, by this interpreter, or forked from a warm process (see warm). Either way
the process that entered waits for the command and then ends; it is never inside the sandbox's process namespace.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.core.processes import end
from engine.sandbox import enter
from engine.sandbox.cgroups import CommandGroup

_PATIENCE_S = 30.0


class Entered(Protocol):
    """A process that entered a sandbox."""

    @property
    def ended(self) -> bool: ...

    async def wait(self) -> None: ...

    async def end(self) -> None:
        """Kill it unless it has ended, and let go of it; safe to call again."""
        ...


class Started:
    """Started cold."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def wait(self) -> None:
        await self._process.wait()

    async def end(self) -> None:
        await end(self._process)


class Forked:
    """Forked from a warm process, which reaps it."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._note)

    def _note(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> None:
        await self._ended.wait()

    async def end(self) -> None:
        if self._pidfd < 0:
            return
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.shield(self._ended.wait())
        os.close(self._pidfd)
        self._pidfd = -1


async def start_cold(request: int, status: int, streams: tuple[int, int, int], passed: Sequence[int]) -> Started:
    """Start the helper over descriptors: its request, where it tells the end, the command's standard streams, and
    those that the request names."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        enter.__file__,
        str(request),
        str(status),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        pass_fds=(request, status, *passed),
        env={},
        cwd="/",
        start_new_session=True,
    )
    return Started(process)


async def kill_command(entered: Entered, group: CommandGroup) -> None:
    """Kill a command with all it started; the process that entered then ends by itself."""
    deadline = time.monotonic() + _PATIENCE_S
    waiting = asyncio.ensure_future(entered.wait())
    while not waiting.done() and time.monotonic() < deadline:
        # Again and again: at the very beginning the command's first process may not have joined its group yet.
        await asyncio.to_thread(group.kill)
        await asyncio.wait([waiting], timeout=0.01)
    await entered.end()
    await waiting


@contextlib.contextmanager
def memory_file(contents: bytes, uid: int) -> Iterator[int]:
    """A sealed file in memory, at its beginning: cannot grow, so it is no way around a limit."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchown(descriptor, uid, -1)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(contents)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def standard_input(contents: bytes, uid: int) -> Iterator[int]:
    """Nothing given is the null device: some programs search whatever file stands there, even empty."""
    if contents:
        with memory_file(contents, uid) as descriptor:
            yield descriptor
        return
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
