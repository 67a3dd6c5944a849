"""What has become of a remote sandbox.

One whose processes have ended may still give its files out (`over`); one that is `lost` gives nothing.
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "over", "lost"]


@dataclass(frozen=True, kw_only=True)
class Fate:
    """A sandbox's state."""

    state: State
    reason: str
    """One line; empty while all is well."""
    oom: bool = False
    """Whether its processes were ended for want of memory."""
    exit_code: int = 0
    """Of its first process, once it is over."""
