"""What training asks of the parts that make it up: models, algorithms, routing replay, the trainer itself.

Protocols as those of `contracts`, and under the same rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from engine.core.contracts import Preparable, Say
from engine.core.records import Batch, Demonstration
from engine.core.specs import ModelInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Model(Preparable, Protocol):
    """A model made by the project or found on disk."""

    def info(self) -> ModelInfo: ...


@runtime_checkable
class WarmStartedModel(Model, Protocol):
    """A model that begins with what a scripted player showed through the real harness; made by `job=sft`.

    bind → (missing) → draft in a folder beside `info().path` → demonstrations tokenised by the draft → fit → settle"""

    demonstrations: Any
    """`samples_per_task` of each harness, and the `right_share` of them that propose the right repair."""

    def bind(self, fingerprint: str) -> None:
        """Before `info`: the fingerprint of all that the demonstrations are made with."""
        ...

    def draft(self, texts: Iterable[str], folder: Path) -> ModelInfo:
        """Tokeniser learnt from whole conversations, and random weights, in `folder`; an engine could load it."""
        ...

    def fit(self, folder: Path, rows: Sequence[Demonstration], say: Say) -> Mapping[str, float]:
        """Replace the draft's weights by fitted ones; returns metrics. Synchronous: call it from a worker thread."""
        ...

    def settle(self, folder: Path) -> Path:
        """Move the finished draft to `info().path`, which appears whole; another process may have been first."""
        ...


class Advantage(Protocol):
    """Rewards of one group → one advantage per kept trajectory."""

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]: ...


class Rewards(Protocol):
    """The rewards of a batch's kept trajectories → those that advantages are computed from, in the same order."""

    def __call__(self, rewards: Sequence[float], step: int) -> tuple[float, ...]: ...


class Algorithm(Protocol):
    """What the optimiser minimises. The trainer sees per-token streams, never an algorithm's name."""

    rewards: Rewards
    advantage: Advantage

    @property
    def needs_reference(self) -> bool:
        """Whether `Streams.reference` must be filled: the trainer then keeps the frozen start of the run."""
        ...

    def loss(self, streams: Any) -> tuple[Any, Mapping[str, float]]:
        """From `engine.train.streams.Streams` (torch) to a scalar tensor and metrics."""
        ...


class RoutingReplay(Protocol):
    """Whether captured expert routing is replayed in the trainer's forward passes."""

    enabled: bool


class Trainer(Protocol):
    """Recomputes log-probabilities, replays routing, updates weights. Synchronous: call it from a worker thread."""

    doing: str
    """What a running step is at and how far it is, for a person; read from other threads."""

    def start(self, model: ModelInfo, algorithm: Algorithm, replay: RoutingReplay, seed: int) -> None: ...

    def step(self, batch: Batch) -> Mapping[str, Any]:
        """One optimisation step over a batch.

        Returns flat float metrics, and under `old_logprobs` a list of float32 [n] per row: the recomputed
        log-probability of each sampled token (0 where `target` is False)."""
        ...

    def score(self, token_ids: "NDArray[np.int32]") -> "NDArray[np.float32]":
        """As `Inference.score`, by the trainer's current weights, routing free."""
        ...

    def export(self, path: Path) -> None:
        """Write the weights as one safetensors file with Hugging Face names."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights, optimiser, scheduler and RNG; the folder appears whole or not at all."""
        ...

    def load(self, directory: Path) -> None: ...

    def stop(self) -> None:
        """Let go of the model; from any thread. A step in another thread ends within one micro-batch, with
        Interrupted; a save, a load or an export there is finished. It does not wait for them."""
        ...
