"""`job=sft`: the warm start and its gate report.

Makes the checkpoint of a warm-started model unless it is cached, then lets it try training tasks through the real
engine, harness and sandbox. The report stands in the run directory (`reports/warm_start.json`); it never blocks.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from engine.config.built import Built
from engine.core.errors import ConfigError
from engine.core.records import Scored, Trial, TrialKey
from engine.core.training_contracts import WarmStartedModel
from engine.observe.observer import Observer
from engine.run import warm_start
from engine.run.directory import check_directory, open_directory
from engine.run.drain import Drain, ended_by_its_words
from engine.run.gate import Goals, gate, gate_lines
from engine.run.plan import derived_seed
from engine.run.rollout import Rollout
from engine.run.selection import tell_left_out, unselected
from engine.run.workbench import check_machine, open_workbench
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.writer import Writer


class SftJob:
    """Supervised fine-tuning on a scripted solver's conversations.

    Args:
        gate_trials: trials on training tasks that the gate is judged by.
        goals: `valid_calls`, `junk`, `solve_low`, `solve_high`: see `engine.run.gate.Goals`.
    """

    def __init__(self, *, gate_trials: int, goals: Mapping[str, float]) -> None:
        self.gate_trials = gate_trials
        self.goals = Goals(
            valid_calls=goals["valid_calls"], junk=goals["junk"], solve=(goals["solve_low"], goals["solve_high"])
        )

    async def run(self, built: Built) -> int:
        """Exit code 0 when the checkpoint stands, whatever the gate says."""
        images = DebianImageStore()
        self.check(built)
        trials = self._trials(built)
        tell_left_out(built.tasks)
        observer: Observer = built.observe
        with open_directory(built) as layout:
            observer.start(layout)
            try:
                observer.phase("making the warm start", 0, 0, "")
                await ended_by_its_words(partial(warm_start.make, unselected(built), images), observer.say)
                check_machine(built, images)
                scored = await self._try(built, images, layout, trials)
            finally:
                observer.stop()
            report = {"model": str(built.model.info().path), **gate(scored, self.goals)}
            Writer(layout).json("reports/warm_start.json", report)
            for line in gate_lines(report):
                print(line)
            print(layout.root / "reports/warm_start.json")
        return 0

    def check(self, built: Built) -> None:
        """Raises ConfigError for a model without a warm start, what this machine lacks, and a pool without tasks."""
        if not isinstance(built.model, WarmStartedModel):
            way_out = "choose model=warm_qwen3_moe"
            raise ConfigError("model", built.model.info().name, "is not a model that is warm-started", way_out)
        check_machine(built, DebianImageStore(), model=False)
        self._trials(built)
        check_directory(built)

    async def _try(
        self, built: Built, images: DebianImageStore, layout: Layout, trials: Sequence[Trial]
    ) -> list[Scored]:
        """Trials at the run's own sampling, kept apart from the run's, and from those of another checkpoint: one folder
        may see several, by a `run.name` that is used again or by another version of this program."""
        observer: Observer = built.observe
        place = Layout(root=layout.root / "gate" / f"{built.model.info().path.name}-{built.hash}")
        place.root.mkdir(parents=True, exist_ok=True)
        done: list[Scored] = []

        def tell(what: str) -> None:
            observer.phase(what, 0, 0, "")

        async with open_workbench(built, layout, images, tell, observer.say) as bench:
            rollout = Rollout(bench.shop, bench.engine, built.schedule, place, Drain())

            def show(scored: Scored) -> None:
                done.append(scored)
                observer.trials("gate", done, len(trials), rollout.running)

            observer.trials("gate", done, len(trials), rollout.running)
            return await rollout.run(0, trials, show, lambda scored: observer.say(scored.trajectory.reason))

    def _trials(self, built: Built) -> Sequence[Trial]:
        """Training tasks in a drawn order, round and round, and the harnesses in turn. Raises ConfigError."""
        tasks = sorted((task for task in built.tasks.load() if task.split == "train"), key=lambda task: task.id)
        if not tasks:
            way_out = "choose a pool that has some (tasks=laptop)"
            raise ConfigError("tasks", built.config["tasks"]["_target_"], "has no training task to try", way_out)
        random.Random(derived_seed(built.seed, "gate")).shuffle(tasks)  # noqa: S311
        names: list[Any] = sorted(built.harnesses)
        return [
            Trial(
                key=TrialKey(run="gate", epoch=0, task=task.id, sample=index // len(tasks), attempt=0),
                task=task,
                harness=names[index % len(names)],
                policy_version=0,
                seed=derived_seed(built.seed, "gate", index),
                temperature=built.proxy.temperature,
                top_p=built.proxy.top_p,
                split="train",
            )
            for index in range(self.gate_trials)
            for task in [tasks[index % len(tasks)]]
        ]
