"""Ending in order: what is running is finished and written, nothing new is begun."""

from engine.core.errors import Interrupted


class Drain:
    """A request that can be made once, from the event loop, and is looked at wherever something new would begin."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True

    def check(self) -> None:
        """Raise Interrupted when it was asked for."""
        if self.asked:
            raise Interrupted("ended early, as asked; what was running is finished")
