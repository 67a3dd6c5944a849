"""Runs the trials of one step.

Consumes: planned trials. Produces: one `Scored` per trial, kept in the store the moment it is finished. Waits for: a
free place (`concurrency`), and an engine that is started again. Infrastructure failures are tried again, at most
`max_attempts` times by one start of the run; each attempt has its own key, its own file and its lines in the ledger. A
death of the engine costs a trial none of its attempts. Trials that an earlier start finished are read, not run again;
those that it gave up are tried again, since a person may have mended the machine.

Invariant: the ledger says `running` before a trial runs, and what it came to once its file is whole.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.core.records import Scored, Termination, Trial
from engine.run.drain import Drain
from engine.run.keeper import EngineKeeper
from engine.run.settings import Schedule
from engine.run.trial import Workshop, run_trial
from engine.store.layout import Layout
from engine.store.ledger import Entry, Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer

OnDone = Callable[[Scored], None]
OnRetry = Callable[[Scored], None]


def entry(trial: Trial) -> Entry:
    """The trial's name in its step's ledger."""
    return trial.split, str(trial.key)


@dataclass(kw_only=True)
class _Running:
    """Where a trial in flight is."""

    begun: float
    """Monotonic seconds."""
    stage: str

    def enter(self, stage: str) -> None:
        self.stage = stage


class Rollout:
    """Samples and grades trials into one run directory."""

    def __init__(self, shop: Workshop, engine: EngineKeeper, schedule: Schedule, layout: Layout, drain: Drain) -> None:
        self.ledger = Ledger(layout)
        self._shop = shop
        self._engine = engine
        self._schedule = schedule
        self._reader = Reader(layout)
        self._writer = Writer(layout)
        self._drain = drain
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

        `on_done` hears of each final attempt, `on_retry` of each one that is tried again. Raises Interrupted when it
        was asked to end early, once the trials in flight are written."""
        await asyncio.to_thread(self._plan, step, trials)
        places = asyncio.Semaphore(self._schedule.concurrency)

        async def one(trial: Trial) -> Scored | None:
            async with places:
                return await self._attempts(step, trial, on_done, on_retry)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(trial)) for trial in trials]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        ended = [scored for task in running if (scored := task.result()) is not None]
        if len(ended) < len(trials):
            self._drain.check()
        return ended

    def _plan(self, step: int, trials: Sequence[Trial]) -> None:
        known = self.ledger.states(step)
        new = [entry(trial) for trial in trials if entry(trial) not in known]
        if new:
            self.ledger.move(step, new, "pending")

    async def _attempts(self, step: int, trial: Trial, on_done: OnDone, on_retry: OnRetry) -> Scored | None:
        """The final attempt; None when the run is to end before the trial has one."""
        attempt = tries = 0
        while True:
            tried = replace(trial, key=replace(trial.key, attempt=attempt))
            scored = self._reader.trial(step, tried)
            await asyncio.to_thread(self._agree, step, tried, scored)
            if scored is None:
                if self._drain.asked:
                    return None
                scored, counts = await self._fresh(step, tried)
                tries += counts
            attempt += 1
            if not scored.trajectory.termination.retryable or tries >= self._schedule.max_attempts:
                await asyncio.to_thread(self._supersede, step, tried)
                on_done(scored)
                return scored
            on_retry(scored)

    def _agree(self, step: int, trial: Trial, found: Scored | None) -> None:
        """Bring the ledger to what a killed process, or a person who deleted a file, left on disk."""
        name = entry(trial)
        state = self.ledger.state(step, name)
        if state is None:
            self.ledger.move(step, [name], "pending")
            state = "pending"
        if found is None and state != "pending":
            why = "the process that ran it died" if state == "running" else "its file, or its routing, is gone"
            self.ledger.move(step, [name], "pending", why)
        elif found is not None and state in ("pending", "running"):
            if state == "pending":
                self.ledger.move(step, [name], "running", "found on disk")
            self._ended(step, found)

    def _supersede(self, step: int, final: Trial) -> None:
        """Later attempts of an earlier start count no more, where one before them was run again and is the last now."""
        known = self.ledger.states(step)
        later = replace(final, key=replace(final.key, attempt=final.key.attempt + 1))
        while entry(later) in known:
            if known[entry(later)] != "excluded":
                why = f"attempt {final.key.attempt} was run again and took its place"
                self.ledger.move(step, [entry(later)], "excluded", why)
            self._writer.forget_trial(step, later)
            later = replace(later, key=replace(later.key, attempt=later.key.attempt + 1))

    def _ended(self, step: int, scored: Scored) -> None:
        termination = scored.trajectory.termination
        name = [entry(scored.trajectory.trial)]
        if termination.excluded:
            self.ledger.move(step, name, "excluded", f"{termination}: {scored.trajectory.reason}")
        else:
            self.ledger.move(step, name, "finished")

    async def _fresh(self, step: int, trial: Trial) -> tuple[Scored, bool]:
        """Run one attempt; whether it counts as one: a dead engine is no fault of the trial's."""
        await self._engine.revive()
        deaths = self._engine.deaths
        await asyncio.to_thread(self.ledger.move, step, [entry(trial)], "running")
        running = self._in_flight[str(trial.key)] = _Running(begun=time.monotonic(), stage="setup")
        try:
            scored = await run_trial(trial, self._shop, running.enter)
        finally:
            del self._in_flight[str(trial.key)]
        await asyncio.to_thread(self._keep, step, scored)  # it waits for the disk, the proxies must not
        died = bool(self._engine.failure()) or self._engine.deaths != deaths
        return scored, not (died and scored.trajectory.termination is Termination.ENGINE_ERROR)

    def _keep(self, step: int, scored: Scored) -> None:
        self._writer.trial(step, scored)
        self._ended(step, scored)
