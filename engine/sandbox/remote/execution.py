"""One process that an API started in a sandbox: what it is given, what it writes, how it ended.

Invariant of every implementation: an end is only what the server said; a stream that stops without it is `Cut`, never
an exit code. Nothing of a trial stands in a URL or a command line: requests go over standard input.
"""

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Protocol

from engine.core.errors import SandboxError


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended."""

    exit_code: int
    output: bytes
    errors: bytes


class Cut(SandboxError):
    """The stream stopped and nobody said how the process ended."""


class Execution(Protocol):
    """A process that was started."""

    async def send(self, contents: bytes) -> None:
        """Give it more standard input; what has ended takes none, which is no error."""
        ...

    async def send_all(self, pieces: AsyncIterable[bytes]) -> None: ...

    async def ended(self) -> Ended:
        """Wait for its end. Raises Cut, and SandboxError where it never ran."""
        ...

    async def close(self) -> None:
        """Let go of it; safe to call again."""
        ...
