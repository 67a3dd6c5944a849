"""What a remote sandbox asks of whatever holds it: a Protocol, filled for pods and for podman's hosts."""

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.sandbox.remote.execution import Execution
from engine.sandbox.remote.fate import Fate


class Place(Protocol):
    """The containers of one sandbox, on another machine."""

    kind: str
    """What a person calls it, in messages: `a pod`."""

    def fate(self) -> Fate:
        """What is known of it now."""
        ...

    async def until(self, holds: Callable[[], bool], patience_s: float | None) -> bool:
        """Wait until `holds` of what is known; False when that took too long."""
        ...

    async def start(self, role: Sequence[str], on_output: Callable[[bytes], object] | None) -> Execution:
        """Start a process of ours: `run` or `sweep` among the sandbox's, or `keep OPERATION`. Raises SandboxError."""
        ...

    def check(self, path: str) -> None:
        """Raises SandboxError for a path that the sandbox may not write."""
        ...

    async def listen(self, port: int) -> socket.socket:
        """As the Sandbox's. Raises SandboxError."""
        ...

    async def settle(self) -> None:
        """Wait until all that was tried so far is among `denied`."""
        ...

    def denied(self) -> list[str]:
        """As the Sandbox's."""
        ...

    async def end(self) -> int:
        """End all processes of the sandbox's user; how many there were. Files stay. Raises SandboxError."""
        ...

    async def remove(self) -> None:
        """Remove all of it, and wait until it is gone. Raises SandboxError."""
        ...
