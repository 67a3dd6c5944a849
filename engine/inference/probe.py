"""The check after each weight update that engine and trainer hold the same weights.

Both score the same fixed token sequences; the largest |Δ log p| must stay under a bar. A reload can corrupt weights
with every call answering 200, so this runs after every update, before anything is sampled. Invariant: it returns only
when they agree; otherwise WeightSyncError with the figures. The sequences are uniform over the vocabulary, so they pass
through all experts. A near tie in one router may fall differently on the two sides and move one sequence; so a sequence
over the bar is tried once more with other tokens: wrong weights fail again, a tie does not.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.core.errors import AlignmentError, WeightSyncError
from engine.core.specs import ModelInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

EngineScore = Callable[["NDArray[np.int32]"], Awaitable["NDArray[np.float32]"]]
TrainerScore = Callable[["NDArray[np.int32]"], "NDArray[np.float32]"]


class WeightProbe:
    """Fixed sequences and the bar for their largest |Δ log p|."""

    def __init__(self, *, sequences: int, length: int, seed: int, max_abs_dlogp: float) -> None:
        self.sequences = sequences
        self.length = length
        self.seed = seed
        self.max_abs_dlogp = max_abs_dlogp

    def tokens(self, model: ModelInfo, again: bool = False) -> "NDArray[np.int32]":
        """int32 [sequences, length], always the same for a model; `again`: the second set."""
        config = json.loads((model.path / "config.json").read_text("utf-8"))
        vocabulary = int(config.get("text_config", config)["vocab_size"])
        random = np.random.default_rng([self.seed, int(again)])
        return random.integers(0, vocabulary, (self.sequences, self.length), np.int32)

    async def check(self, model: ModelInfo, engine: EngineScore, trainer: TrainerScore) -> Mapping[str, float]:
        """Score with both (`Inference.score`, `Trainer.score`); the trainer's runs in a worker thread.

        Returns `probe/max_abs_dlogp`, `probe/mean_abs_dlogp`, `probe/retried` (sequences) and `probe/tokens`."""
        gaps = [await _gap(row, engine, trainer) for row in self.tokens(model)]
        over = [index for index, gap in enumerate(gaps) if not gap.max() <= self.max_abs_dlogp]
        for index in over:
            first = gaps[index]
            gaps[index] = await _gap(self.tokens(model, again=True)[index], engine, trainer)
            if not gaps[index].max() <= self.max_abs_dlogp:
                raise WeightSyncError(
                    f"after a weight update engine and trainer disagree: max |Δ log p| {first.max():.3g} and, on other "
                    f"tokens, {gaps[index].max():.3g} (mean {gaps[index].mean():.3g}), over {self.length - 1} tokens "
                    f"each; the bar is inference.probe.max_abs_dlogp={self.max_abs_dlogp:g}"
                )
        every = np.concatenate(gaps)
        return {
            "probe/max_abs_dlogp": float(every.max()),
            "probe/mean_abs_dlogp": float(every.mean()),
            "probe/retried": float(len(over)),
            "probe/tokens": float(every.size),
        }


async def _gap(ids: "NDArray[np.int32]", engine: EngineScore, trainer: TrainerScore) -> "NDArray[np.float64]":
    """|Δ log p| per token after the first; not a number counts as infinite."""
    ours = np.asarray(await asyncio.to_thread(trainer, ids), np.float64)
    theirs = np.asarray(await engine(ids), np.float64)
    if ours.shape != theirs.shape or ours.shape != (len(ids) - 1,):
        raise AlignmentError(
            f"the probe got scores of shape {theirs.shape} from the engine and {ours.shape} from the trainer "
            f"for {len(ids)} tokens"
        )
    gap = np.abs(ours - theirs)
    return np.where(np.isnan(gap), np.inf, gap)
