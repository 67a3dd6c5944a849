"""`job=train`: rollout → train → sync → checkpoint → validate, step after step, from where the run directory left off.

Invariant: a step is finished when its checkpoint is whole; only then are its weights validated. A restart goes on at
the last whole checkpoint and reads the trials that its weights sampled, so none is lost and none is trained twice; what
came of weights that are gone is deleted.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from engine.config.built import Built
from engine.config.bundle import describe, fingerprint
from engine.core.errors import ConfigErrors, RunError
from engine.core.records import Scored, Trial
from engine.core.task_contracts import DoubtedPool
from engine.core.threads import threads_end_here
from engine.observe.learning import write_report
from engine.observe.observer import Observer
from engine.observe.progress import Note
from engine.observe.summary import summarise
from engine.run.directory import check_directory, open_directory
from engine.run.drain import Drain
from engine.run.guard import warn
from engine.run.optimise import Optimiser
from engine.run.plan import Plan, Sampling
from engine.run.quarantine import Quarantine
from engine.run.reproduce import fingerprints, resumed, tell
from engine.run.rollout import Rollout, entry
from engine.run.selection import tell_left_out
from engine.run.workbench import Workbench, check_machine, open_workbench
from engine.sandbox.images import DebianImageStore
from engine.store.complete import check_checkpoints, check_complete
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.state import StateFile, read_state
from engine.store.writer import Writer


class TrainJob:
    """The main job."""

    def __init__(self) -> None:
        self._drain = Drain()

    def drain(self) -> bool:
        """End once what is running is finished and written: trials in flight, or the step whose update has begun."""
        return self._drain.ask()

    async def run(self, built: Built) -> int:
        """Exit code 0 when all planned steps are done."""
        if not built.fresh and _finished(built):
            return 0
        images = DebianImageStore()
        plan = self._plan(built, images)
        described = describe(built, fingerprints(plan.tasks), fingerprint(built.model.info().path))
        tell(built, described)
        tell_left_out(built.tasks)
        warn(built.config)
        with open_directory(built) as layout:
            return await self._work(built, plan, layout, images, described)

    def check(self, built: Built) -> None:
        """Before a sweep starts: what this machine lacks, a pool that cannot be trained on, another run's directory."""
        if not built.fresh and _state(built) == "finished":
            return
        self._plan(built, DebianImageStore())
        check_directory(built)

    def _plan(self, built: Built, images: DebianImageStore) -> Plan:
        """Raises ConfigError for what keeps the run from starting."""
        check_machine(built, images)
        tasks = built.tasks.load()
        doubts = built.tasks.doubts(tasks) if isinstance(built.tasks, DoubtedPool) else ()
        if doubts:
            raise ConfigErrors(doubts)
        plan = Plan(
            run=built.directory.name,
            seed=built.seed,
            schedule=built.schedule,
            tasks=tasks,
            harnesses=tuple(built.harnesses),
            rollout=Sampling(temperature=built.proxy.temperature, top_p=built.proxy.top_p),
        )
        plan.check()
        return plan

    async def _work(
        self, built: Built, plan: Plan, layout: Layout, images: DebianImageStore, described: Mapping[str, Any]
    ) -> int:
        """All steps that are left, in a directory that is this process's own."""
        if _finished(built):
            return 0
        reader, writer = Reader(layout), Writer(layout)
        done = max(reader.checkpoints(), default=0)
        state = StateFile(layout)
        observer: Observer = built.observe

        def beat() -> None:
            with suppress(RunError):  # a disk that takes no more is told by the job's own next write
                state.beat(observer.progress_interval_s)

        try:
            with state.told("interrupted; the same command goes on"):
                state.update("starting", steps=plan.steps, step=done, policy_version=done)
                described = resumed(built, reader.config(), described)
                _settle(layout, writer, done)
                summarise(reader, 0.0)  # what is damaged in finished steps is told now, not after the last one
                writer.text("config.yaml", yaml.safe_dump(dict(described), sort_keys=False))
                observer.start(layout, [beat])
                async with (
                    threads_end_here(),
                    open_workbench(
                        built, layout, images, lambda what: observer.phase(what, 0, 0, ""), observer.say
                    ) as bench,
                ):
                    await _Loop(built, plan, bench, layout, state, self._drain).run()
                check_complete(layout, plan.steps)
                async with threads_end_here():
                    await _write_report(layout, observer)
                summary = summarise(reader, state.wall_s)
                writer.json("summary.json", summary)
                state.update("finished")
        finally:
            observer.stop()
        _report(layout.root, summary)
        return 0


def _settle(layout: Layout, writer: Writer, done: int) -> None:
    """Bring the store to its newest checkpoint; what is made again is told where it is more than a step cut off."""
    recorded = check_checkpoints(layout, done)
    if recorded > done + 1:
        print(f"checkpoint {done} is the newest: steps {done + 1} to {recorded} are made again", file=sys.stderr)
    writer.forget_beyond(done)
    check_complete(layout, done)


def _state(built: Built) -> str:
    """The phase of this very run; empty before its first start. Raises ConfigError where another lies there."""
    check_directory(built)
    state = read_state(Layout(root=built.directory))
    return "" if state is None else str(state["phase"])


def _finished(built: Built) -> bool:
    """Whether the run's directory holds this very run, done; says so. Raises ConfigError where it holds another."""
    if _state(built) != "finished":
        return False
    print(f"this run is finished; run.fresh=true starts it anew\n{built.directory}")
    return True


class _Loop:
    """The steps of one started run."""

    def __init__(
        self, built: Built, plan: Plan, bench: Workbench, layout: Layout, state: StateFile, drain: Drain
    ) -> None:
        self._plan = plan
        self._schedule = built.schedule
        self._state = state
        self._layout = layout
        self._reader, self._writer = Reader(layout), Writer(layout)
        self._observer: Observer = built.observe
        self._drain = drain
        self._rollout = Rollout(bench.shop, bench.engine, built.schedule, layout, drain)
        self._ledger = self._rollout.ledger
        self._quarantine = Quarantine(built.schedule.quarantine, self._reader, self._writer, self._ledger)
        self._optimiser = Optimiser(built, bench, layout)
        self._trainer = bench.trainer
        self._model = bench.model

    async def run(self) -> None:
        self._writer.tokenizer(self._model.path)
        first = await self._optimiser.resume(self._reader.checkpoints(), self._show)
        if first:
            self._writer.forget_routing(first - 1)
            self._observer.say(f"resuming at step {first + 1}/{self._plan.steps} from checkpoint {first}")
        self._ledger.settle(first)
        self._drain.begin()
        before = await self._measure(first)  # which an earlier start may not have come to
        if first:
            await self._end(first - 1)
        for step in range(first, self._plan.steps):
            self._drain.check()
            await self._step(step, before if step == 0 else {})
            await self._measure(step + 1)
            await self._end(step)

    async def _step(self, step: int, before: Mapping[str, float]) -> None:
        """From rollout to checkpoint; `before`: metrics that the step's record has besides its own."""
        title = f"step {step + 1}/{self._plan.steps}"
        begun = time.monotonic()
        self._state.update("rollout", step=step, policy_version=step)
        planned = self._quarantine.left(step, self._plan.trials(step, step))
        scored = await self._sample(step, f"{title} rollout", planned)
        scored = self._quarantine.sift(step, scored, self._observer.say)
        rolled_out = time.monotonic() - begun
        self._drain.check()
        self._state.update("train")
        trained = [entry(one.trajectory.trial) for one in scored if not one.trajectory.termination.excluded]
        self._ledger.move(step, trained, "trained")  # ahead of the update; without its checkpoint it is taken back
        self._show(f"{title} train", lambda: self._trainer.doing)
        found = await self._optimiser.step(step, scored, lambda what: self._sync(f"{title} {what}"))
        record = self._optimiser.record(step, {**before, **found, "time/rollout_s": rolled_out})
        self._state.update("checkpoint", policy_version=step + 1)
        self._writer.step(record)
        self._observer.judge(record, self._writer)
        self._show(f"{title} checkpoint")
        await self._optimiser.checkpoint(step + 1)
        self._writer.forget_routing(step)

    async def _end(self, step: int) -> None:
        """Show a step that is done, its validation included."""
        record = self._reader.step(step)
        self._observer.step(record, self._plan.steps)
        if "validation/reward" in record.metrics or (step + 1) % self._observer.report_every == 0:
            await _write_report(self._layout, self._observer)

    async def _measure(self, version: int) -> dict[str, float]:
        """Validate the weights after `version` updates, which are on disk, where that is due and not done.

        What comes of it is entered in the record of the step that made the weights; that of the first weights, which no
        step made, is returned, for the first step's record."""
        if version == 0:
            before = await self._validation(0)
            names = {"validation/reward": "validation/reward_before", "validation/trials": "validation/trials_before"}
            return {names[name]: value for name, value in before.items() if name in names}
        record = self._reader.step(version - 1)
        if "validation/reward" not in record.metrics:
            found = await self._validation(version)
            if found:
                self._writer.step(replace(record, metrics={**record.metrics, **found}))
        return {}

    async def _validation(self, version: int) -> dict[str, float]:
        """Metrics of the held-out tasks after `version` updates; none where none are due.

        Its trials are kept under that number: `validation/step=0` is the policy before the first update."""
        every, first = self._schedule.validation_every, self._schedule.validation_first
        if not (first if version == 0 else every and version % every == 0):
            return {}
        begun = time.monotonic()
        self._state.update("validation")
        title = f"step {version}/{self._plan.steps} validation" if version else "validation before step 1"
        held_out = await self._sample(version, title, self._plan.validation(version, version))
        rewards = [one.verdict.reward for one in held_out if one.verdict is not None]
        if not rewards:
            return {}
        return {
            "validation/reward": sum(rewards) / len(rewards),
            "validation/trials": len(rewards),
            "time/validation_s": time.monotonic() - begun,
        }

    def _show(self, phase: str, note: Note = "") -> None:
        self._observer.phase(phase, 0, 0, note)

    def _sync(self, phase: str) -> None:
        self._state.update("sync")
        self._show(phase)

    async def _sample(self, step: int, title: str, trials: Sequence[Trial]) -> list[Scored]:
        """Run trials, showing after each attempt that ends how far they are."""
        done: list[Scored] = []

        def show(scored: Scored) -> None:
            done.append(scored)
            self._observer.trials(title, done, len(trials), self._rollout.running)

        def tell(scored: Scored) -> None:
            trajectory = scored.trajectory
            self._observer.say(f"trying {trajectory.trial.key} again: {trajectory.termination}: {trajectory.reason}")

        self._observer.trials(title, done, len(trials), self._rollout.running)
        return await self._rollout.run(step, trials, show, tell)


async def _write_report(layout: Layout, observer: Observer) -> None:
    """A report that cannot be made is told and stops no run: all it shows is in the store, and `job=report` is left."""
    observer.phase("writing the learning report", 0, 0, "")
    try:
        await asyncio.to_thread(write_report, layout)
    except Exception as error:
        observer.say(f"no learning report: {type(error).__name__}: {error}; try job=report job.runs=[{layout.root}]")


def _report(root: Path, summary: Mapping[str, Any]) -> None:
    """The summary for a person; the last line is the run's directory."""
    trials, alignment = summary["trials"], summary["alignment"]
    excluded = ", ".join(f"{reason} {count}" for reason, count in trials["excluded"].items()) or "none"
    rewards = ", ".join(f"{reward:.3f}" for reward in summary["reward"]["by_step"])
    lines = [
        f"steps        {summary['steps']}",
        f"trials       {trials['started']} started, {trials['kept']} kept; excluded: {excluded}",
        f"reward       by step: {rewards}",
        *_learning(summary["learning"]),
        f"alignment    Pearson r {alignment['pearson_r_median']}, max |Δ log p| {alignment['max_abs_dlogp']}",
        f"tokens       {summary['tokens']['sampled']} sampled, {summary['tokens']['trained']} trained",
        "stages       " + ", ".join(f"{name} {q['p50']:.2f} s" for name, q in summary["stages"].items()) + " (p50)",
        f"wall         {summary['wall_s']:.0f} s",
        f"look next    {Layout(root=root).learning}",
        "             summary.json, config.yaml, trajectories/*/*.parquet, steps/*.parquet;",
        f"             tensorboard --logdir {root / 'tensorboard'}",
        str(root),
    ]
    print("\n".join(lines))


def _learning(learning: Mapping[str, Any]) -> list[str]:
    """How far the reward rose; nothing for a run too short to be compared with itself."""
    change, (first, last) = learning["training"], learning["windows"]
    if change is None:
        return []
    interval = f"{change['low']:+.3f} to {change['high']:+.3f}"
    return [f"learning     {change['difference']:+.3f} ({interval}): last {last} steps minus first {first}"]
