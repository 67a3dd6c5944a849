"""How long a sandbox may live, so that none lives for ever because whoever holds it hangs.

A sandbox has its work's own limit (the agent's or the grading's) and a grace beside it; one in which a person may stay,
or that is left running, has `sandbox.keep_s`. The runtime that made it ends it when its time is over; a minute later
anybody may remove it, though its owner's lock is held.

Invariant: what is within its time is never called over. The clock is one that all processes of a machine share and that
stands still while the machine sleeps, as do the limits that a sandbox must outlive; a record of another boot, or of
another machine with the same cache, is compared with nothing.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from engine.core.specs import SandboxSpec

OWNERS_S = 60.0
"""Beyond its time: by then an owner that works has ended a sandbox and removed it itself."""


def clock() -> float:
    """Seconds since the machine started, less those that it slept."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def boot() -> str:
    """Names this start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a configuration grants."""

    grace_s: float
    """Beside the work's own limit: making, filling and reading a sandbox, and whatever holds its owner up."""
    keep_s: float
    """Of a sandbox in which a person may stay, or that is left running."""

    def life_s(self, spec: SandboxSpec) -> float:
        """Seconds from now that a sandbox may live."""
        if spec.lasting or spec.work_s is None:
            return self.keep_s
        return spec.work_s + self.grace_s


def is_over(ends_s: float, of_boot: str, *, beyond_s: float) -> bool:
    """Whether a recorded time has passed, by more than `beyond_s`; no boot: none was recorded."""
    return bool(of_boot) and of_boot == boot() and clock() > ends_s + beyond_s


def words(seconds: float) -> str:
    """A time as a person says it: `3 days`, `2 h`, `40 s`."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
