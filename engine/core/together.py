"""Several jobs at once, as one: the first failure ends the others and is raised; nothing outlives a cancellation.

Each job is cancelled once: a second time would interrupt its tidying up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

_Answer = TypeVar("_Answer")


async def side_by_side(jobs: Sequence[Callable[[], Awaitable[_Answer]]], width: int) -> list[_Answer]:
    """The answers in order, `width` jobs at a time."""
    turns = asyncio.Semaphore(width)

    async def one(job: Callable[[], Awaitable[_Answer]]) -> _Answer:
        async with turns:
            return await job()

    running = [asyncio.create_task(one(job)) for job in jobs]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for task in running:
            if not task.cancelling():  # `gather`, when cancelled, has told all of them, and waits for the first alone
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
