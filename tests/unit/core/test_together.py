"""Jobs side by side: the answers' order, the width, and that nothing outlives a failure."""

import asyncio
from functools import partial

import pytest

from engine.core.together import side_by_side


async def test_answers_come_in_order_and_no_more_than_the_width_run_at_once() -> None:
    running = most = 0

    async def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (9 - number))
        running -= 1
        return number

    assert await side_by_side([partial(job, number) for number in range(9)], 3) == list(range(9))
    assert most == 3


async def test_the_first_failure_ends_the_others_and_is_what_is_raised() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        await side_by_side([waits, fails], 2)
    assert ended == ["waits"]


async def test_jobs_that_tidy_up_are_not_cancelled_again() -> None:
    """One is through at once; the other still removes what it made."""
    tidied: list[str] = []
    begun = asyncio.Event()

    async def quick() -> None:
        await asyncio.Event().wait()

    async def slow() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0.001)
            tidied.append("slow")

    work = asyncio.create_task(side_by_side([quick, slow], 2))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert tidied == ["slow"]
