"""Which host gets the next sandbox: pure functions over what is known of each.

A host's load is what it carries and what is being made there, of this engine and of others, by its capacity; where
that is not bounded, by its processors. Of equal loads the host that is named first wins.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(kw_only=True)
class Seats:
    """What one host carries."""

    capacity: int | None
    """None: no bound."""
    processors: int = 1
    """Of the host, once it has said."""
    here: int = 0
    """This engine's sandboxes there, those that are being made included."""
    elsewhere: int = 0
    """Those of other engines, as the host told last."""
    away: str = ""
    """Why nothing is put there for now; empty: it answers."""

    @property
    def load(self) -> float:
        return (self.here + self.elsewhere) / (self.capacity or max(self.processors, 1))

    @property
    def free(self) -> bool:
        """Whether there is room for one more."""
        return not self.away and (self.capacity is None or self.here + self.elsewhere < self.capacity)


def choose(seats: Iterable[Seats]) -> int | None:
    """Index of the host that the next sandbox is put on; None: none has room."""
    loads = [(each.load, index) for index, each in enumerate(seats) if each.free]
    return min(loads)[1] if loads else None
