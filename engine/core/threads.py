"""Threads and an end in order. Nothing can end a thread from outside: who gives up what it works on must wait for it.

Invariant: once `threads_end_here` is left, however, no thread that was started within it through the event loop
(`asyncio.to_thread`) is at work.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


@asynccontextmanager
async def threads_end_here() -> AsyncIterator[None]:
    """Give the event loop threads of its own within; on leaving, wait for all of them. Not to be nested."""
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="within")
    loop.set_default_executor(threads)
    try:
        yield
    finally:
        loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="after"))
        await to_the_end(asyncio.to_thread(threads.shutdown))


async def to_the_end(
    work: Awaitable[_Answer], *, undo: Callable[[_Answer], Coroutine[Any, Any, object]] | None = None
) -> _Answer:
    """Finish it whatever happens to the caller, then obey the cancellations that came meanwhile: first `undo` what it
    gave."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if undo is not None and not task.cancelled() and task.exception() is None:
            await to_the_end(undo(task.result()))
        raise


async def in_thread(operation: Callable[..., _Answer], *arguments: object) -> _Answer:
    """Run blocking work in a thread; when cancelled, wait for its end first, so that nothing works on unseen."""
    return await to_the_end(asyncio.to_thread(operation, *arguments))
