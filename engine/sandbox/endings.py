"""Whether a process of a sandbox's lives, by its pidfd; and the wait for its end."""

import asyncio
import select
from pathlib import Path

from engine.core.errors import SandboxError

_PATIENCE_S = 30.0
_PF_EXITING = 0x4


def exiting(pid: int) -> bool:
    """Whether a process is on its way out: a first process takes all others along before it has ended itself."""
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except OSError:
        return True
    return bool(flags & _PF_EXITING)


def ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


async def wait_for_end(pidfd: int, name: str) -> None:
    """Wait until a process that was killed has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await asyncio.wait_for(over.wait(), _PATIENCE_S)
    except TimeoutError as error:
        raise SandboxError(f"sandbox {name} does not end") from error
    finally:
        loop.remove_reader(pidfd)
