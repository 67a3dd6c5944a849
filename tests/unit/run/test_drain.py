"""Work in a thread ends soon after its cancellation."""

import asyncio
import threading
import time

import pytest

from engine.core.contracts import Say
from engine.core.errors import Interrupted
from engine.run.drain import ended_by_its_words


async def test_what_a_cancelled_thread_says_ends_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    def fit(say: Say) -> None:
        begun.set()
        try:
            while True:
                say("an update")
                time.sleep(0.01)
        except Interrupted:
            ended.set()

    async def work(say: Say) -> None:
        say("begins")
        await asyncio.to_thread(fit, say)

    said: list[str] = []
    running = asyncio.create_task(ended_by_its_words(work, said.append))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 60)
    assert said[:2] == ["begins", "an update"]


async def test_what_is_not_cancelled_says_and_answers_as_it_is() -> None:
    async def work(say: Say) -> int:
        say("one")
        return 7

    said: list[str] = []
    assert await ended_by_its_words(work, said.append) == 7
    assert said == ["one"]
