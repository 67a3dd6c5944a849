"""Runs the trials of one step.

Consumes: planned trials. Produces: one `Scored` per trial, kept in the store the moment it is finished. Waits for: a
free place (`concurrency`). Infrastructure failures are tried again, at most `max_attempts` times by one start of the
run; each attempt has its own key and its own file. Trials that an earlier start finished are read, not run again; those
that it gave up are tried again, since a person may have mended the machine. An engine that is gone for good ends the
rollout: no retry can help.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.core.contracts import Inference
from engine.core.errors import RunError
from engine.core.records import Scored, Termination, Trial
from engine.run.settings import Schedule
from engine.run.trial import Workshop, run_trial
from engine.store.reader import Reader
from engine.store.writer import Writer

OnDone = Callable[[Scored], None]
OnRetry = Callable[[Scored], None]


@dataclass(kw_only=True)
class _Running:
    """Where a trial in flight is."""

    begun: float
    """Monotonic seconds."""
    stage: str

    def enter(self, stage: str) -> None:
        self.stage = stage


class Rollout:
    """Samples and grades trials."""

    def __init__(
        self, shop: Workshop, inference: Inference, schedule: Schedule, reader: Reader, writer: Writer
    ) -> None:
        self._shop = shop
        self._inference = inference
        self._schedule = schedule
        self._reader = reader
        self._writer = writer
        self._in_flight: dict[str, _Running] = {}

    def running(self) -> str:
        """How many trials are in flight, and where the oldest is; empty when there is none. For any thread."""
        flight = list(self._in_flight.values())
        if not flight:
            return ""
        oldest = min(flight, key=lambda one: one.begun)
        return f"{len(flight)} running (oldest {time.monotonic() - oldest.begun:.0f} s in {oldest.stage})"

    async def run(self, step: int, trials: Sequence[Trial], on_done: OnDone, on_retry: OnRetry) -> list[Scored]:
        """The final attempt of each trial, in the order of `trials`.

        `on_done` hears of each final attempt, `on_retry` of each one that is tried again."""
        places = asyncio.Semaphore(self._schedule.concurrency)

        async def one(trial: Trial) -> Scored:
            async with places:
                return await self._attempts(step, trial, on_done, on_retry)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(trial)) for trial in trials]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        return [task.result() for task in running]

    async def _attempts(self, step: int, trial: Trial, on_done: OnDone, on_retry: OnRetry) -> Scored:
        attempt = tries = 0
        while True:
            tried = replace(trial, key=replace(trial.key, attempt=attempt))
            scored = self._reader.trial(step, tried)
            if scored is None:
                scored = await self._fresh(step, tried)
                tries += 1
            attempt += 1
            if not scored.trajectory.termination.retryable or tries >= self._schedule.max_attempts:
                on_done(scored)
                return scored
            on_retry(scored)

    async def _fresh(self, step: int, trial: Trial) -> Scored:
        running = self._in_flight[str(trial.key)] = _Running(begun=time.monotonic(), stage="setup")
        try:
            scored = await run_trial(trial, self._shop, running.enter)
        finally:
            del self._in_flight[str(trial.key)]
        failure = self._inference.failure()
        # an attempt that only met a dead engine is not kept: the restarted run owes the trial all its attempts
        if not failure or scored.trajectory.termination is not Termination.ENGINE_ERROR:
            await asyncio.to_thread(self._writer.trial, step, scored)  # it waits for the disk, the proxies must not
        if failure:
            raise RunError(f"{failure}; the same command goes on where this run stopped")
        return scored
