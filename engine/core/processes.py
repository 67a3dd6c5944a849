"""Child processes of the host side: started in their own session, killed whole when the caller is cancelled.

Invariant: when a coroutine here returns or raises, no process that it started is left.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


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
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdout is not None
    try:
        with log.open("ab") as file:
            async for raw in process.stdout:
                file.write(raw)
                line = raw.decode(errors="replace").rstrip()
                if line:
                    tail = [*tail[-4:], line]
                    on_line(line)
        return await process.wait(), " / ".join(tail)
    finally:
        await end(process)


async def run_checked(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a short host command, with this process's environment by default; returns (exit code, its output)."""
    process = await asyncio.create_subprocess_exec(
        *command,
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
