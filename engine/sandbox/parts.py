"""What a runtime hands over when it has started a sandbox."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.specs import SandboxSpec
from engine.sandbox import files
from engine.sandbox.cgroups import Cgroup
from engine.sandbox.rooms import Room
from engine.sandbox.warm import WarmProcesses


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a runtime hands over when it has started a sandbox."""

    spec: SandboxSpec
    room: Room
    init: int
    """Host process id of the first process."""
    cgroup: Cgroup
    owner: files.Owner
    warm: WarmProcesses | None
    """The runtime's; None: it has none."""
    output_limit: int
    """Bytes of each output stream that are kept."""
    keep_s: float
    """Seconds that it is kept when it is left running."""
    network: Mapping[str, Sequence[str]]
    """Phase → what it reaches (`engine.core.reach`); a phase without a list reaches nothing."""
    hosts: Mapping[str, Sequence[str]]
    """Names that are not looked up."""
    remove: Callable[[], Coroutine[Any, Any, None]]
    """Removes what the runtime made: container, mounts, files; called once, after the last process has ended."""
