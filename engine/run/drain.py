"""Ending in order: what is running is finished and written, nothing new is begun."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.core.contracts import Say
from engine.core.errors import Interrupted

_Answer = TypeVar("_Answer")


class Drain:
    """A request that can be made once, from the event loop, and is looked at wherever something new would begin."""

    def __init__(self) -> None:
        self.asked = False
        self._begun = False

    def begin(self) -> None:
        """From now on there is something to finish."""
        self._begun = True

    def ask(self) -> bool:
        """Whether there is something to finish; where there is not, whoever asks may stop it all at once."""
        self.asked = True
        return self._begun

    def check(self) -> None:
        """Raise Interrupted when it was asked for."""
        if self.asked:
            raise Interrupted("ended early, as asked; what was running is finished")


async def ended_by_its_words(work: Callable[[Say], Awaitable[_Answer]], say: Say) -> _Answer:
    """Do work that tells of itself from a thread. Nothing can end a thread from outside, and the program waits for it:
    once the work is cancelled, the next thing that is said ends it."""
    drain = Drain()

    def told(line: str) -> None:
        drain.check()
        say(line)

    try:
        return await work(told)
    except asyncio.CancelledError:
        drain.ask()
        raise
