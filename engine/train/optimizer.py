"""AdamW with float32 master weights, gradient clipping and a warm-up. Torch.

Invariant: the learning rate is a function of the configuration and the number of updates, never of a checkpoint; it is
never 0 by accident. With bfloat16 weights, gradients are summed and updates applied in float32: at a learning rate of
1e-6 a bfloat16 weight would not move at all.
Refuses: a gradient that is not finite; no weight is changed then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.core.errors import RunError


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """See `engine.train.torch_trainer.TorchTrainer`."""

    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    epsilon: float
    gradient_clip: float
    warmup_steps: int


def learning_rate(settings: OptimizerSettings, updates: int) -> float:
    """Rate of the next update after `updates` updates: a linear warm-up that begins above 0, then constant."""
    if updates >= settings.warmup_steps:
        return settings.learning_rate
    return settings.learning_rate * (updates + 1) / settings.warmup_steps


class Optimizer:
    """Updates `parameters` (name → leaf tensor) in place."""

    def __init__(self, parameters: Mapping[str, Any], settings: OptimizerSettings) -> None:
        self.settings = settings
        self.updates = 0
        self._parameters = dict(parameters)
        self.master: dict[str, Any] = {name: _master(parameter) for name, parameter in self._parameters.items()}
        # Decaying gains and biases pulls them to 0, which regularises nothing.
        decayed = [tensor for tensor in self.master.values() if tensor.dim() >= 2]
        plain = [tensor for tensor in self.master.values() if tensor.dim() < 2]
        self._adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
        )

    def zero(self) -> None:
        """Begin an update: gradients are zeros, not absent, so that a parameter never drops out of Adam's moments."""
        for name, master in self.master.items():
            master.grad = torch.zeros_like(master)
            if self._parameters[name] is not master:
                self._parameters[name].grad = None

    def accumulate(self) -> None:
        """Add the gradients of a micro-batch to the masters'; nothing to do where the parameter is its own master."""
        for name, parameter in self._parameters.items():
            master = self.master[name]
            if parameter is not master and parameter.grad is not None:
                master.grad.add_(parameter.grad.to(master.dtype))
                parameter.grad = None

    def step(self, where: str) -> dict[str, float]:
        """Clip, update, and copy into the parameters; returns `train/grad_norm` (before clipping) and `train/lr`.

        Raises RunError, naming `where`, on a gradient that is not finite; then nothing is changed."""
        masters = list(self.master.values())
        norm = float(torch.nn.utils.clip_grad_norm_(masters, self.settings.gradient_clip, error_if_nonfinite=False))
        if not norm < float("inf"):
            self.discard()
            raise RunError(f"{where}: gradient norm is {norm}; the update was not applied; lower train.learning_rate")
        rate = learning_rate(self.settings, self.updates)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self.updates += 1
        self.discard()
        self.publish()
        return {"train/grad_norm": norm, "train/lr": rate}

    def discard(self) -> None:
        """Drop all gradients."""
        for tensor in (*self.master.values(), *self._parameters.values()):
            tensor.grad = None

    def publish(self) -> None:
        """Copy the masters into the parameters, rounding to their type."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter is not self.master[name]:
                    parameter.copy_(self.master[name])

    def state(self) -> dict[str, Any]:
        """Adam's moments by parameter name, and the number of updates; no setting, as those are the configuration's."""
        moments = {name: self._adam.state[tensor] for name, tensor in self.master.items() if tensor in self._adam.state}
        return {"moments": moments, "updates": self.updates}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`, onto the current settings."""
        self._adam.state.clear()
        for name, moments in state["moments"].items():
            master = self.master[name]
            self._adam.state[master] = {
                key: value.to(master.device) if key != "step" else value for key, value in moments.items()
            }
        self.updates = int(state["updates"])


def _master(parameter: Any) -> Any:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.detach().to(torch.float32).clone().requires_grad_()
