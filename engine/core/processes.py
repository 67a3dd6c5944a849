"""Child processes of the host side: supervised, so that they end whole with the caller, however that ends.

Invariant: when a coroutine here returns or raises, no process that stems from its command is left; after the caller's
`kill -9` neither, as soon as the supervisor (`supervise.py`) has heard of it.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_LINE = 1 << 12
"""Bytes of a command's line that are passed on."""


def supervised(command: Sequence[str], grace_s: float = 0.0, folder: Path | None = None) -> tuple[str, ...]:
    """`command` under supervision, to be started by this very process: a supervisor refuses any other parent.

    `grace_s`: seconds between asking it to end and killing it; `folder` is removed at its end."""
    # -I and -S: the environment is the command's, the supervisor reads none of it
    script = (sys.executable, "-I", "-S", str(_SUPERVISOR), str(grace_s), str(os.getpid()), str(folder or ""))
    return (*script, *command)


async def run_logged(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None],
) -> tuple[int, str]:
    """Run a host command, append its output to `log`, hand each line on; returns (exit code, last lines)."""
    tail: list[str] = []
    process = await asyncio.create_subprocess_exec(
        *supervised(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with log.open("ab") as file:
            async for line in _lines(process.stdout, file):
                tail = [*tail[-4:], line]
                on_line(line)
        return await process.wait(), " / ".join(tail)
    finally:
        await _stop(process)


async def _lines(output: asyncio.StreamReader, log: BinaryIO) -> AsyncIterator[str]:
    """What a command says, line by line, and all of it to `log`. A progress bar ends its lines with a carriage return
    alone, or never: a line is passed on cut, and memory stays bounded, whatever its length."""
    kept = b""
    while raw := await output.read(1 << 16):
        log.write(raw)
        *whole, rest = re.split(rb"[\r\n]", kept + raw)
        for line in whole:
            if text := line[:_LINE].decode(errors="replace").rstrip():
                yield text
        kept = rest[:_LINE]
    if text := kept.decode(errors="replace").rstrip():
        yield text


async def run_checked(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a short host command, with this process's environment by default; returns (exit code, its output)."""
    process = await asyncio.create_subprocess_exec(
        *supervised(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env=None if environment is None else dict(environment),
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have the supervisor kill what stems from its command, in whatever session, and wait for that."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    await asyncio.shield(process.wait())
    await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process with its session's group, wait for it, and close its pipes; safe to call again."""
    if process.returncode is None:
        # Not `process.kill()`: that reaps the child behind the back of the event loop, which then cannot.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())
    # A pipe that a grandchild still holds would keep the transport, and its file descriptor, alive.
    process._transport.close()  # type: ignore[attr-defined]
