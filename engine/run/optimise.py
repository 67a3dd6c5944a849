"""The optimiser's side of a step: judged trajectories → batch → update → the engine has the new weights, proven.

Consumes: the `Scored` of a step. Produces: metrics, a checkpoint. Waits for: the engine to hold the new weights.
"""

import asyncio
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.config.built import Built
from engine.core.errors import LegoError, RunError
from engine.core.records import Batch, Group, Recomputed, Scored, StepRecord
from engine.core.whole import draft_of, make_folder
from engine.observe.trials import trial_metrics
from engine.run.workbench import Workbench
from engine.samples.alignment import check_batch, compare_batch
from engine.samples.groups import make_groups
from engine.samples.rows import make_batch
from engine.store.layout import Layout
from engine.store.writer import Writer

Tell = Callable[[str], None]
"""Hears what the optimiser does next."""


class Optimiser:
    """Owns the trainer's version: after step n it is n + 1, in the trainer, in the engine and on disk."""

    def __init__(self, built: Built, bench: Workbench, layout: Layout) -> None:
        self._checkpoints_kept = built.schedule.checkpoints_kept
        self._algorithm = built.algorithm
        self._bench = bench
        self._layout = layout
        self._writer = Writer(layout)
        self._probe_of_weights = built.inference.probe
        self._version = 0
        self._probed: Mapping[str, float] = {}
        self._tell: Tell = lambda _: None
        bench.engine.bring = self._bring

    async def resume(self, checkpoints: Sequence[int], tell: Tell) -> int:
        """Go on at the newest checkpoint; returns its version, 0 when there is none. Probes the engine either way."""
        version = checkpoints[-1] if checkpoints else 0
        if version:
            tell(f"loading checkpoint {version}")
            await asyncio.to_thread(self._bench.trainer.load, self._layout.checkpoint(version))
            await self._prune(version)
        await self._hand_over(version, tell)
        return version

    async def step(self, step: int, scored: Sequence[Scored], tell: Tell) -> dict[str, float]:
        """Update on the step's trials, move the weights into the engine and probe it. Returns flat metrics.

        `tell` hears of what follows the update."""
        deal = partial(self._algorithm.rewards, step=step)
        groups = make_groups(scored, self._algorithm.advantage, deal)
        batch = make_batch(groups, step=step, policy_version=step)
        counts = check_batch(groups, batch)
        begun = time.monotonic()
        result = dict(await asyncio.to_thread(self._bench.trainer.step, batch))
        trained = time.monotonic()
        old = result.pop("old_logprobs")
        agreement = _agreement(batch, old)
        await asyncio.to_thread(self._writer.recomputed, step, _recomputed(groups, batch, old))
        probed = await self._hand_over(step + 1, tell)
        return {
            **_rewards(groups),
            **trial_metrics(scored),
            "tokens/sampled": counts.sampled,
            "tokens/trained": counts.trained,
            **{name: float(value) for name, value in result.items()},
            **agreement,
            **probed,
            "time/train_s": trained - begun,
            "time/sync_s": time.monotonic() - trained,
        }

    def record(self, step: int, metrics: Mapping[str, float]) -> StepRecord:
        """The step's row; values that are not defined for it (NaN) are left out."""
        return StepRecord(
            step=step,
            policy_version=step + 1,
            metrics={name: float(value) for name, value in metrics.items() if not math.isnan(value)},
        )

    async def checkpoint(self, version: int) -> None:
        """Save all that the next step depends on."""
        make_folder(self._layout.checkpoints)
        await asyncio.to_thread(self._bench.trainer.save, self._layout.checkpoint(version))
        await self._prune(version)

    async def _prune(self, newest: int) -> None:
        if self._checkpoints_kept is not None:
            await asyncio.to_thread(self._delete, newest - self._checkpoints_kept)

    def _delete(self, last: int) -> None:
        """Delete checkpoints up to version `last`; renamed first, so that a kill leaves none that looks whole."""
        for version in range(last, 0, -1):
            folder = self._layout.checkpoint(version)
            if not folder.exists():
                return
            gone = draft_of(folder)  # which the next start removes, should this be cut off
            folder.rename(gone)
            shutil.rmtree(gone)

    async def _hand_over(self, version: int, tell: Tell) -> Mapping[str, float]:
        """The engine has the trainer's weights, proven, also where it dies on the way; returns the probe's metrics."""
        self._version, self._tell = version, tell
        try:
            await self._bring()
        except LegoError:
            if not self._bench.engine.failure():
                raise
            await self._bench.engine.revive()  # which calls `_bring`
        return self._probed

    async def _bring(self) -> None:
        if self._version:
            await self._transfer()
        self._tell("comparing engine and trainer")
        bench = self._bench
        if self._probe_of_weights is None:
            raise RunError("an engine without a probe cannot be trained: nothing would show that it has the weights")
        score = bench.engine.inference.score
        self._probed = await self._probe_of_weights.check(bench.model, score, bench.trainer.score)

    async def _transfer(self) -> None:
        self._tell("moving the weights into the engine")
        path = self._layout.scratch / f"weights-{self._version}.safetensors"
        try:
            await asyncio.to_thread(self._bench.trainer.export, path)
            await self._bench.engine.inference.update_weights(path, self._version)
        finally:
            path.unlink(missing_ok=True)


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    """Reward statistics over kept trajectories, and how many groups can teach anything."""
    verdicts = [scored.verdict for group in groups for scored in group.kept if scored.verdict is not None]
    rewards = [verdict.reward for verdict in verdicts]
    mean = sum(rewards) / len(rewards)
    flat = sum(1 for group in groups if not any(group.advantages))
    endings = Counter(scored.trajectory.termination.value for group in groups for scored in group.kept)
    return {
        "reward/mean": mean,
        "reward/std": (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5,
        "reward/resolved": sum(verdict.resolved for verdict in verdicts) / len(verdicts),
        "groups/zero_variance": flat / len(groups),
        "trials/kept": len(rewards),
        "trials/excluded": sum(len(group.excluded) for group in groups),
        **{f"termination/{name}": count / len(rewards) for name, count in endings.items()},
    }


def _recomputed(groups: Sequence[Group], batch: Batch, old: Sequence[NDArray[np.float32]]) -> list[Recomputed]:
    """The trainer's log-probabilities under the names of the trials; `make_batch` keeps the order of the groups."""
    kept = [scored.trajectory for group in groups for scored in group.kept]
    segments = [(one.trial.key, number) for one in kept for number in range(len(one.segments))]
    return [
        Recomputed(
            trial=key,
            segment=number,
            policy_version=batch.policy_version,
            advantage=row.advantage,
            logprobs=values[row.target],
        )
        for (key, number), row, values in zip(segments, batch.rows, old, strict=True)
    ]


def _agreement(batch: Batch, recomputed: Sequence[NDArray[np.float32]]) -> dict[str, float]:
    """Captured against recomputed log-probabilities; tokens of older weights are reported apart."""
    fresh, stale = compare_batch(batch, recomputed)
    metrics = {
        "alignment/tokens": fresh.tokens,
        "alignment/pearson_r": fresh.pearson_r,
        "alignment/kl": fresh.kl,
        "alignment/max_abs_dlogp": fresh.max_abs_dlogp,
        "alignment/worst_trajectory": max(fresh.trajectory_abs_dlogp.values(), default=0.0),
    }
    if stale.tokens:
        metrics |= {
            "alignment/stale_tokens": stale.tokens,
            "alignment/stale_pearson_r": stale.pearson_r,
            "alignment/stale_kl": stale.kl,
        }
    return metrics
