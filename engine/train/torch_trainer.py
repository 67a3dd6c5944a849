"""The trainer on one machine: torch and a Hugging Face causal language model.

    step: check → old log-probabilities → reference → per update: loss → weight of each token → backward

Invariant: the gradient is exact for any loss over the whole update, however rows are split into micro-batches. The loss
is taken over all tokens at once, on plain log-probabilities; its derivative by each token is then the token's weight in
the backward pass of that token's micro-batch. So a ratio may couple tokens of many micro-batches.
Refuses: a batch that does not fit the model, a step that was trained already, anything that is not finite.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError, Interrupted, RunError
from engine.core.records import Batch
from engine.core.specs import ModelInfo
from engine.core.training_contracts import Algorithm, RoutingReplay
from engine.train.microbatches import check_batch, collate, plan
from engine.train.streams import Streams

if TYPE_CHECKING:
    from engine.train.optimizer import Optimizer
    from engine.train.policy import Policy

_RowValues = dict[int, Any]
"""Row index → float64 tensor [targets of the row]."""


class TorchTrainer:
    """See `engine.core.training_contracts.Trainer`. Runs in one process on one device; call it from one worker thread.

    Args:
        learning_rate: peak and constant rate of AdamW.
        betas: AdamW's moment decay rates.
        weight_decay: AdamW's decoupled decay, on matrices alone.
        adam_epsilon: AdamW's epsilon.
        gradient_clip: largest global gradient norm.
        scheduler: `constant`, after the warm-up.
        warmup_steps: updates of linear warm-up; 0: the first update has the full rate.
        mini_batches: optimiser updates per batch, each over its share of the trajectories.
        micro_batch_tokens: tokens, padding included, that go through the model together.
        micro_batch_rows: rows that go through the model together.
        gradient_checkpointing: recompute activations in the backward pass.
        experts_implementation: how transformers computes experts: `eager` or `grouped_mm`.
        dtype: type of the weights in forward passes; masters are float32 where it is bfloat16.
        device: torch device.
        threads: CPU threads of torch.
    """

    def __init__(
        self,
        *,
        learning_rate: float,
        betas: Sequence[float],
        weight_decay: float,
        adam_epsilon: float,
        gradient_clip: float,
        scheduler: str,
        warmup_steps: int,
        mini_batches: int,
        micro_batch_tokens: int,
        micro_batch_rows: int,
        gradient_checkpointing: bool,
        experts_implementation: str,
        dtype: str,
        device: str,
        threads: int,
    ) -> None:
        self.learning_rate = learning_rate
        self.betas = betas
        self.weight_decay = weight_decay
        self.adam_epsilon = adam_epsilon
        self.gradient_clip = gradient_clip
        self.scheduler = scheduler
        self.warmup_steps = warmup_steps
        self.mini_batches = mini_batches
        self.micro_batch_tokens = micro_batch_tokens
        self.micro_batch_rows = micro_batch_rows
        self.gradient_checkpointing = gradient_checkpointing
        self.experts_implementation = experts_implementation
        self.dtype = dtype
        self.device = device
        self.threads = threads
        self.reference_sha256 = ""
        """Fingerprint of the weights at the start of the run; set by `start`."""
        self.doing = ""
        """See `Trainer.doing`."""
        self._policy: Policy | None = None
        self._reference: Policy | None = None
        self._optimizer: Optimizer | None = None
        self._algorithm: Algorithm | None = None
        self._seed = 0
        self._last_step: int | None = None
        self._stopped = False

    # ------------------------------------------------------------ life

    def start(self, model: ModelInfo, algorithm: Algorithm, replay: RoutingReplay, seed: int) -> None:
        """Load the model (and its frozen copy, where the algorithm needs one). Raises ConfigError or RunError."""
        import torch

        from engine.train.checkpoint import fingerprint
        from engine.train.optimizer import Optimizer, OptimizerSettings
        from engine.train.policy import Policy, PolicySettings

        torch.set_num_threads(self.threads)
        torch.manual_seed(seed)
        settings = PolicySettings(
            device=self.device,
            dtype=self.dtype,
            experts=self.experts_implementation,
            gradient_checkpointing=self.gradient_checkpointing,
            replay=replay.enabled,
        )
        self._policy = Policy(model, settings)
        self._reference = Policy(model, settings) if algorithm.needs_reference else None
        self.reference_sha256 = fingerprint(self._policy.parameters)
        if self._reference is not None:
            for parameter in self._reference.parameters.values():
                parameter.requires_grad_(False)
        self._optimizer = Optimizer(
            self._policy.parameters,
            OptimizerSettings(
                learning_rate=self.learning_rate,
                betas=(float(self.betas[0]), float(self.betas[1])),
                weight_decay=self.weight_decay,
                epsilon=self.adam_epsilon,
                gradient_clip=self.gradient_clip,
                warmup_steps=self.warmup_steps,
            ),
        )
        self._algorithm, self._seed, self._last_step, self._stopped = algorithm, seed, None, False

    def stop(self) -> None:
        """See `Trainer.stop`: what runs in another thread has the model in its hands until it ends."""
        self._stopped = True
        self._policy = self._reference = self._optimizer = self._algorithm = None

    # ------------------------------------------------------------ training

    def step(self, batch: Batch) -> Mapping[str, Any]:
        """See `Trainer.step`. After an error before the first update the weights are as they were."""
        policy, optimizer = self._started()
        if self._last_step is not None and batch.step <= self._last_step:
            raise RunError(f"step {batch.step} was asked for, but step {self._last_step} is trained already")
        check_batch(batch, policy.shape)
        self.doing = ""
        everything = range(len(batch.rows))
        began = time.monotonic()
        old, entropy = self._evaluate(policy, batch, everything, entropy=True)
        old_s, began = time.monotonic() - began, time.monotonic()
        reference = self._reference_values(batch, old, everything)
        reference_s, began = time.monotonic() - began, time.monotonic()
        metrics: list[dict[str, float]] = []
        for part in self._mini_batches(batch):
            rows = [index for index in sorted(old) if batch.rows[index].trajectory in part]
            if not rows:
                continue
            # Before the first update the new log-probabilities are the old ones by value, so that pass is saved.
            new = _copy(old, rows) if not metrics else self._evaluate(policy, batch, rows, entropy=False)[0]
            metrics.append(self._update(batch, rows, part, (new, old, reference)))
        self._last_step = batch.step
        return {
            **_combined(metrics),
            "train/entropy": entropy,
            "train/updates": float(optimizer.updates),
            "train/tokens": float(sum(int(row.target.sum()) for row in batch.rows)),
            "train/trajectories": float(batch.trajectories),
            "time/old_logprobs_s": old_s,
            "time/reference_logprobs_s": reference_s,
            "time/update_s": time.monotonic() - began,
            "old_logprobs": _as_rows(batch, old),
        }

    def _evaluate(
        self, policy: "Policy", batch: Batch, rows: Sequence[int], *, entropy: bool
    ) -> tuple[_RowValues, float]:
        """Log-probabilities without gradient, and the mean entropy (nats) over all targets where asked."""
        import torch

        values: _RowValues = {}
        total, count = 0.0, 0
        done, which = 0, "reference " if policy is self._reference else ""
        with torch.no_grad():
            for indices in self._plan(batch, rows):
                self._go_on(f"{which}log-probabilities, row {done + 1} of {len(rows)}")
                done += len(indices)
                micro = collate(batch.rows, indices, replay=policy.shape.replay)
                with policy.replaying(micro):
                    logprobs, entropies = policy.logprobs(micro, batch.temperature, entropy=entropy)
                total += float(entropies.sum()) if entropies is not None else 0.0
                count += len(logprobs)
                values.update(zip(indices, logprobs.to(torch.float64).split(list(micro.counts)), strict=True))
        for index in sorted(values):
            if not bool(torch.isfinite(values[index]).all()):
                raise RunError(f"step {batch.step}: log-probabilities of row {index} are not finite")
        return values, total / max(count, 1)

    def _reference_values(self, batch: Batch, old: _RowValues, rows: Sequence[int]) -> _RowValues | None:
        _, optimizer = self._started()
        if self._reference is None:
            return None
        if optimizer.updates == 0:  # the policy still is the frozen start
            return _copy(old, sorted(old))
        return self._evaluate(self._reference, batch, rows, entropy=False)[0]

    def _mini_batches(self, batch: Batch) -> list[frozenset[int]]:
        """Trajectory indices of each update; shuffled by seed and step when there are several."""
        if self.mini_batches == 1:
            return [frozenset(range(batch.trajectories))]
        order = np.random.default_rng((self._seed, batch.step)).permutation(batch.trajectories)
        return [frozenset(part.tolist()) for part in np.array_split(order, self.mini_batches) if len(part)]

    def _update(
        self,
        batch: Batch,
        rows: list[int],
        part: frozenset[int],
        values: tuple[_RowValues, _RowValues, _RowValues | None],
    ) -> dict[str, float]:
        """One optimiser update over the trajectories of `part`, whose rows with targets are `rows`."""
        import torch

        policy, optimizer = self._started()
        new, old, reference = values
        streams = _streams(batch, rows, part, (new, old, reference))
        assert self._algorithm is not None
        loss, metrics = self._algorithm.loss(streams)
        where = f"step {batch.step}"
        if not bool(torch.isfinite(loss)):
            raise RunError(f"{where}: the loss is {float(loss.detach())}; the update was not applied")
        loss.backward()
        gradient = streams.new.grad if streams.new.grad is not None else torch.zeros_like(streams.new)
        weights = dict(zip(rows, gradient.split([len(new[index]) for index in rows]), strict=True))
        optimizer.zero()
        # A row whose tokens all have weight 0 (clipped, or no advantage and no KL) cannot change the sum.
        acting = [index for index in rows if bool((weights[index] != 0).any())]
        gap = 0.0
        done = 0
        for indices in self._plan(batch, acting):
            self._go_on(f"update {optimizer.updates + 1}, row {done + 1} of {len(acting)}")
            done += len(indices)
            micro = collate(batch.rows, indices, replay=policy.shape.replay)
            with policy.replaying(micro):
                logprobs, _ = policy.logprobs(micro, batch.temperature, entropy=False)
                weight = torch.cat([weights[index] for index in indices]).to(logprobs.dtype)
                (logprobs * weight).sum().backward()
            optimizer.accumulate()
            known = torch.cat([new[index] for index in indices])
            gap = max(gap, float((logprobs.detach().to(torch.float64) - known).abs().max()))
        self._go_on(f"update {optimizer.updates + 1}")
        return {
            **metrics,
            **optimizer.step(where),
            "train/acting_rows": float(len(acting)),
            "train/recompute_gap/max": gap,
        }

    def _go_on(self, doing: str) -> None:
        """Say what comes next. Raises Interrupted where the trainer was stopped meanwhile."""
        if self._stopped:
            raise Interrupted("the trainer was stopped in the middle of a step, which is not applied")
        self.doing = doing

    def _plan(self, batch: Batch, rows: Sequence[int]) -> list[tuple[int, ...]]:
        return plan(batch.rows, rows, max_tokens=self.micro_batch_tokens, max_rows=self.micro_batch_rows)

    # ------------------------------------------------------------ weights and state

    def score(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `Trainer.score`."""
        import torch

        from engine.train.microbatches import MicroBatch

        policy, _ = self._started()
        tokens = len(token_ids)
        if tokens < 2:
            raise AlignmentError(f"score needs at least 2 tokens, got {tokens}")
        micro = MicroBatch(
            rows=(0,),
            counts=(tokens - 1,),
            token_ids=token_ids[None, :-1].astype(np.int64),
            predicting=np.arange(tokens - 1, dtype=np.int64),
            target_ids=token_ids[1:].astype(np.int64),
            experts=None,
            present=None,
        )
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, 1.0, entropy=False)
        result: NDArray[np.float32] = logprobs.to(torch.float32).cpu().numpy()
        return result

    def export(self, path: Path) -> None:
        """See `Trainer.export`."""
        from engine.train.checkpoint import export_weights

        export_weights(self._started()[0].model, path)

    def save(self, directory: Path) -> None:
        """See `Trainer.save`."""
        import torch

        from engine.train.checkpoint import save_state

        _, optimizer = self._started()
        state = {
            "optimizer": optimizer.state(),
            "last_step": self._last_step,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.startswith("cuda") else [],
        }
        meta = {
            "reference_sha256": self.reference_sha256,
            "dtype": self.dtype,
            "last_step": self._last_step,
            "updates": optimizer.updates,
            "torch": str(torch.__version__),
        }
        save_state(directory, optimizer.master, state, meta)

    def load(self, directory: Path) -> None:
        """See `Trainer.load`; call it after `start` on the same model. Raises RunError on another start of the run."""
        import torch

        from engine.train.checkpoint import load_state

        _, optimizer = self._started()
        expected = {"reference_sha256": self.reference_sha256, "dtype": self.dtype}
        state = load_state(directory, optimizer.master, expected)
        optimizer.restore(state["optimizer"])
        optimizer.publish()
        self._last_step = state["last_step"]
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def _started(self) -> "tuple[Policy, Optimizer]":
        if self._policy is None or self._optimizer is None:
            raise RunError("the trainer is not started")
        return self._policy, self._optimizer


def _copy(values: _RowValues, rows: Sequence[int]) -> _RowValues:
    """Fresh tensors: a loss that finds the same tensor twice has no ratio and no clipping."""
    return {index: values[index].clone() for index in rows}


def _streams(
    batch: Batch,
    rows: list[int],
    part: frozenset[int],
    values: tuple[_RowValues, _RowValues, _RowValues | None],
) -> Streams:
    """The streams of one update; trajectories are renumbered 0 … len(part) - 1, `new` is a leaf."""
    import torch

    new, old, reference = values
    number = {trajectory: i for i, trajectory in enumerate(sorted(part))}
    advantage = np.zeros(len(part))
    for index in rows:
        advantage[number[batch.rows[index].trajectory]] = batch.rows[index].advantage
    trajectory = np.repeat(
        [number[batch.rows[index].trajectory] for index in rows], [len(new[index]) for index in rows]
    )
    device = new[rows[0]].device
    return Streams(
        new=torch.cat([new[index] for index in rows]).detach().clone().requires_grad_(),
        old=torch.cat([old[index] for index in rows]),
        reference=None if reference is None else torch.cat([reference[index] for index in rows]),
        trajectory=torch.from_numpy(trajectory.astype(np.int64)).to(device),
        advantage=torch.from_numpy(advantage).to(device),
        trajectories=len(part),
    )


def _combined(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over the updates of a step: smallest of `…/min`, largest of `…/max`, mean of all others."""
    result: dict[str, float] = {}
    for name in metrics[0]:
        values = [update[name] for update in metrics]
        if name.endswith("/min"):
            result[name] = min(values)
        elif name.endswith("/max"):
            result[name] = max(values)
        else:
            result[name] = sum(values) / len(values)
    return result


def _as_rows(batch: Batch, values: _RowValues) -> list[NDArray[np.float32]]:
    """Per row float32 [n], 0 where nothing was sampled."""
    result = []
    for index, row in enumerate(batch.rows):
        line = np.zeros(len(row.token_ids), np.float32)
        if index in values:
            line[row.target] = values[index].to("cpu").numpy().astype(np.float32)
        result.append(line)
    return result
