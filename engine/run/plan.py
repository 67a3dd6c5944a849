"""Which trials a step consists of. A pure function of configuration and step number, so a restart plans the same.

Epochs are reshuffled by seed and epoch; the incomplete last batch of an epoch is dropped (or kept, by configuration).
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engine.core.errors import ConfigError
from engine.core.records import Split, Task, Trial, TrialKey
from engine.run.mix import HarnessMix, shares
from engine.run.settings import Schedule

_Group = tuple[Task, Sequence[str]]
"""A task and the harness of each of its trials."""


def derived_seed(seed: int, *parts: object) -> int:
    """A 31-bit seed from the run's seed and any naming parts; equal parts, equal seed."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn in one split."""

    temperature: float
    top_p: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of a run."""

    run: str
    seed: int
    schedule: Schedule
    tasks: tuple[Task, ...]
    harnesses: tuple[str, ...]
    """Harness names; `schedule.harness_mix` says which of them runs which trial."""
    rollout: Sampling

    @property
    def training(self) -> list[Task]:
        return [task for task in self.tasks if task.split == "train"]

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the training tasks."""
        whole, rest = divmod(len(self.training), self.schedule.prompts_per_step)
        return whole + (1 if rest and not self.schedule.drop_last else 0)

    @property
    def steps(self) -> int:
        """Optimisation steps of the whole run."""
        planned = self.schedule.epochs * self.steps_per_epoch
        return planned if self.schedule.steps is None else min(planned, self.schedule.steps)

    @property
    def mix(self) -> HarnessMix:
        chosen = self.schedule.harness_mix
        return HarnessMix(by=chosen["by"], shares=shares(self.harnesses, chosen["weights"]))

    def check(self) -> None:
        """Raise ConfigError when there is nothing to train on, or too little for every harness of the mix."""
        if self.steps > 0:
            self._check_mix()
            return
        if not self.tasks:
            raise ConfigError("tasks", [], "the pool is empty", "choose another pool, or settings that give tasks")
        if not self.training:
            held_out = sorted(task.id for task in self.tasks)
            problem = "all tasks of the pool are held out, so none is left to train on"
            raise ConfigError("tasks.validation", held_out, problem, "hold fewer out, or add tasks")
        raise ConfigError(
            "schedule.prompts_per_step",
            self.schedule.prompts_per_step,
            f"the pool has {len(self.training)} training tasks, so no batch is ever full",
            "lower it, add tasks, or set schedule.drop_last=false",
        )

    def _check_mix(self) -> None:
        groups = self.steps * self.schedule.prompts_per_step
        for name, share in self.mix.shares.items():
            if self.mix.by == "task" and groups * share < 1:
                problem = (
                    f"the run trains on {groups} groups, too few for one of harness {name} (one in {ceil(1 / share)})"
                )
                way_out = "give it more weight, mix by trajectory, or train for more steps"
                raise ConfigError("schedule.harness_mix.by", "task", problem, way_out)

    def batch(self, step: int) -> list[Task]:
        """Training tasks of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = sorted(self.training, key=lambda task: task.id)
        random.Random(derived_seed(self.seed, "epoch", epoch)).shuffle(order)  # noqa: S311
        width = self.schedule.prompts_per_step
        return order[index * width : (index + 1) * width]

    def trials(self, step: int, version: int) -> list[Trial]:
        """Training trials of a step, grouped by task, at attempt 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        width = self.schedule.prompts_per_step
        each = self.steps_per_epoch * width if self.schedule.drop_last else len(self.training)
        groups = self._groups(self.batch(step), epoch * each + index * width, self.schedule.rollouts_per_prompt)
        return self._trials(groups, step, version, "train", self.rollout)

    def validation(self, step: int, version: int) -> list[Trial]:
        """Validation trials that follow a step: of the same tasks each time, so a curve compares like with like."""
        sampling = Sampling(temperature=self.schedule.validation_temperature, top_p=self.schedule.validation_top_p)
        chosen = sorted(self.held_out[: self.schedule.validation_prompts], key=lambda task: task.id)
        groups = self._groups(chosen, 0, self.schedule.validation_samples)
        return self._trials(groups, step, version, "validation", sampling)

    @property
    def held_out(self) -> list[Task]:
        """Validation tasks in an order drawn by the run's seed: names of one family stand side by side in a pool."""
        order = sorted((task for task in self.tasks if task.split == "validation"), key=lambda task: task.id)
        random.Random(derived_seed(self.seed, "validation")).shuffle(order)  # noqa: S311
        return order

    def _groups(self, tasks: Sequence[Task], first: int, size: int) -> list[_Group]:
        """`first`: how many groups the run has before these."""
        return [(task, self.mix.group(place, size)) for place, task in enumerate(tasks, first)]

    def _trials(
        self, groups: Sequence[_Group], step: int, version: int, split: Split, sampling: Sampling
    ) -> list[Trial]:
        epoch = step // self.steps_per_epoch
        return [
            Trial(
                key=TrialKey(run=self.run, epoch=epoch, task=task.id, sample=sample, attempt=0),
                task=task,
                harness=harness,
                policy_version=version,
                seed=derived_seed(self.seed, split, step, task.id, sample),
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                split=split,
            )
            for task, harnesses in groups
            for sample, harness in enumerate(harnesses)
        ]
