"""Keeps sampling and weight updates apart.

Consumes: callers of `sampling` (many at a time) and of `exclusive` (one at a time). Invariant: while `exclusive` runs,
no `sampling` block is active, and blocks that arrive after it asked wait until it is over. So every token of a
generation comes from one version of the weights. Waits for: the generations in flight, which end by themselves.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """A writer-preferring shared lock for one event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._sampling = 0
        self._writers = 0
        self._updating = False

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._writers)
            self._sampling += 1
        try:
            yield
        finally:
            self._sampling -= 1
            await self._notify()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        self._writers += 1
        held = False
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._sampling and not self._updating)
                self._updating = held = True
            yield
        finally:
            self._writers -= 1
            if held:
                self._updating = False
            await self._notify()

    async def _notify(self) -> None:
        """Wake the waiters, also while this task is being cancelled."""

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        await asyncio.shield(notify())
