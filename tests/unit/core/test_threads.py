"""What was given to a thread is over when its scope is left; nothing that must end is left half done."""

import asyncio
import threading
import time

import pytest

from engine.core.threads import threads_end_here, to_the_end


async def test_threads_are_over_behind_a_cancellation_and_new_ones_are_there() -> None:
    began, log = threading.Event(), list[str]()

    def step() -> None:
        began.set()
        time.sleep(0.3)
        log.append("step ended")

    async def work() -> None:
        async with threads_end_here():
            await asyncio.to_thread(step)

    task = asyncio.create_task(work())
    while not began.is_set():
        await asyncio.sleep(0.01)
    for _ in range(2):  # the second one meets the wait
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["step ended"]
    assert await asyncio.to_thread(lambda: 1) == 1


async def test_the_answer_or_the_error_of_what_ends_is_the_callers() -> None:
    async def answer(value: int) -> int:
        return 1 // value

    assert await to_the_end(answer(1)) == 1
    with pytest.raises(ZeroDivisionError):
        await to_the_end(answer(0))
