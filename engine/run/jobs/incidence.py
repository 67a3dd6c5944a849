"""`job=incidence`: how often does each defence find something, in the trials of this configuration or of another run?

Plays the trials of all steps that the schedule plans, trains nothing, and keeps them in the run's directory: the same
command goes on where it was ended. With `run` it starts nothing and reads that run's trials. Writes the table as
`reports/incidence.json` and prints it. Refuses an engine that fails, and a run without a finished trial.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path

import yaml

from engine.config.built import Built
from engine.config.bundle import describe, fingerprint
from engine.core.records import Scored
from engine.core.temporary import temporary_folder
from engine.core.threads import to_the_end
from engine.observe.curves import check_runs
from engine.observe.incidence import incidences, table
from engine.observe.observer import Observer
from engine.run.directory import check_directory, open_directory
from engine.run.drain import Drain
from engine.run.guard import warn
from engine.run.jobs.report import show_table
from engine.run.keeper import EngineKeeper
from engine.run.plan import Plan, Sampling
from engine.run.reproduce import fingerprints
from engine.run.rollout import Rollout
from engine.run.trial import Workshop
from engine.run.workbench import check_machine, stop_all
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.state import StateFile
from engine.store.writer import Writer


class IncidenceJob:
    """Measures incidences.

    Args:
        run: folder of a run whose trials are counted; None: those of this configuration, which are played.
    """

    def __init__(self, *, run: str | None) -> None:
        self.source = run
        self._drain = Drain()

    def drain(self) -> bool:
        """End once the trials in flight are finished and written."""
        return self._drain.ask()

    async def run(self, built: Built) -> int:
        """Exit code 0 when the table stands; its file is the last line."""
        if self.source is not None:
            root = Path(self.source)
            check_runs("job.run", [root])
            return _report(Layout(root=root))
        self.check(built)
        warn(built.config)
        with open_directory(built) as layout:
            await self._play(built, layout)
            return _report(layout)

    def check(self, built: Built) -> None:
        """Raises ConfigError for what this machine lacks, a plan without trials, and another run's directory."""
        if self.source is None:
            check_machine(built, DebianImageStore())
            _plan(built).check()
            check_directory(built)

    async def _play(self, built: Built, layout: Layout) -> None:
        plan, model, images = _plan(built), built.model.info(), DebianImageStore()
        described = describe(built, fingerprints(plan.tasks), fingerprint(model.path))
        Writer(layout).text("config.yaml", yaml.safe_dump(described, sort_keys=False))
        Writer(layout).tokenizer(model.path)
        state, observer = StateFile(layout), built.observe
        layout.logs.mkdir(parents=True, exist_ok=True)
        observer.start(layout)
        try:
            with state.told("interrupted; the same command goes on"):
                state.update("starting", steps=plan.steps)
                with temporary_folder("incidence") as scratch:
                    await built.proxy.start(model, built.inference)
                    await asyncio.to_thread(built.proxy.check, built.harnesses)
                    await built.sandbox.start(images, layout.root.name)
                    await built.inference.start(model, layout.logs)
                    shop = Workshop.of(built, images, built.proxy, scratch)
                    keeper = EngineKeeper(built.inference, built.schedule.engine_restarts, observer.say)
                    rollout = Rollout(shop, keeper, built.schedule, layout, self._drain)
                    self._drain.begin()
                    for step in range(plan.steps):
                        state.update("rollout", step=step)
                        await _step(plan, step, rollout, observer)
                state.update("finished", step=plan.steps)
        finally:
            observer.stop()
            problems = await to_the_end(stop_all(built))
        for problem in problems:
            raise problem


def _plan(built: Built) -> Plan:
    return Plan(
        run=built.directory.name,
        seed=built.seed,
        schedule=built.schedule,
        tasks=built.tasks.load(),
        harnesses=tuple(built.harnesses),
        rollout=Sampling(temperature=built.proxy.temperature, top_p=built.proxy.top_p),
    )


async def _step(plan: Plan, step: int, rollout: Rollout, observer: Observer) -> None:
    trials, done = plan.trials(step, 0), list[Scored]()
    title = f"incidence {step + 1}/{plan.steps}"

    def show(scored: Scored) -> None:
        done.append(scored)
        observer.trials(title, done, len(trials), rollout.running)

    def again(scored: Scored) -> None:
        observer.say(f"trying {scored.trajectory.trial.key} again: {scored.trajectory.reason}")

    observer.trials(title, done, len(trials), rollout.running)
    await rollout.run(step, trials, show, again)


def _report(layout: Layout) -> int:
    counted = incidences(Reader(layout))
    Writer(layout).json("reports/incidence.json", asdict(counted))
    show_table(*table(counted))
    print(
        f"{counted.trials} trials, {counted.any_finding} of them with a finding;"
        f" {counted.excluded} ended without a verdict"
    )
    print(layout.reports / "incidence.json")
    return 0
