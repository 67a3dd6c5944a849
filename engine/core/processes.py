"""Child processes of the host side: supervised, so that they end whole with the caller, however that ends.

Invariant: when a coroutine here returns or raises, no process that stems from its command is left; after the caller's
`kill -9` neither, as soon as the supervisor (`supervise.py`) has heard of it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_SUPERVISOR = Path(__file__).with_name("supervise.py")


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
        await _stop(process)


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
