"""Keeps an engine alive: one that ended by itself is started again, with the weights that it had.

Consumes: callers that met a dead engine, many at a time. Produces: an engine that samples from the trainer's version
again, proven by the caller's `bring`. Waits for: the new process, about as long as at the start of a run.

Invariant: a death is mended once, however many trials met it. Refuses more deaths than `restarts` in one start of the
run: an engine that keeps dying has a cause that a person must look for.
"""

import asyncio
from collections.abc import Awaitable, Callable

from engine.core.contracts import Inference, Say
from engine.core.errors import LegoError, RunError


class EngineKeeper:
    """Asked before each trial and after each failure."""

    def __init__(self, inference: Inference, restarts: int, say: Say) -> None:
        self.inference = inference
        self.deaths = 0
        """Deaths that were mended: a trial during which it changed may have met a dead engine."""
        self.bring: Callable[[], Awaitable[object]] | None = None
        """Gives a fresh engine the trainer's weights and proves them; None: it serves the checkpoint itself."""
        self._restarts = restarts
        self._say = say
        self._one = asyncio.Lock()

    def failure(self) -> str:
        """Empty while the engine works; else why not."""
        return self.inference.failure()

    async def revive(self) -> None:
        """Return with a working engine. Raises RunError when it died too often or does not start again."""
        async with self._one:
            while failure := self.failure():
                if self.deaths == self._restarts:
                    way_out = "read its log, then the same command goes on where this run stopped"
                    after = f" after schedule.engine_restarts={self._restarts}" if self._restarts else ""
                    raise RunError(f"{failure}{after}; {way_out}")
                self.deaths += 1
                self._say(f"{failure}; starting it again ({self.deaths} of {self._restarts})")
                await self.inference.restart()
                try:
                    if self.bring is not None:
                        await self.bring()
                except LegoError:
                    if not self.failure():
                        raise  # it lives, and what it was given is wrong: no restart can help
