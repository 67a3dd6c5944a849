"""Replays captured expert choices in the routers of a Hugging Face mixture-of-experts model. Torch.

Invariant: only the choice is replayed. The scores are the router's own probabilities, gathered at the given experts and
normalised as the model's configuration says, so the router's gradient is whole; nothing is scattered or zeroed first.
The same choice stands while a micro-batch is in use, hence also when gradient checkpointing runs a layer again.
Refuses: router classes whose forward it does not know, and a number of routers that is not the model's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.errors import RunError

Routed = tuple[Tensor, Tensor, Tensor]

_NORMALISES: dict[str, Callable[[Any], bool]] = {
    "Qwen3MoeTopKRouter": lambda router: bool(router.norm_topk_prob),
    "Qwen3NextTopKRouter": lambda router: bool(router.norm_topk_prob),
    "Qwen3_5MoeTopKRouter": lambda _: True,
}
"""Router classes of transformers 5.24 with softmax over all experts, then top-k → whether the k scores sum to 1."""


class RouterReplay:
    """The routers of one model and the choices that they replay, if any.

    Args:
        model: a transformers model; its routers' `forward` is replaced on the instances.
        layers: routed layers that the model must have.

    Raises RunError when the routers are unknown or of another number.
    """

    def __init__(self, model: Any, layers: int) -> None:
        self._experts: Tensor | None = None
        self._present: Tensor | None = None
        self.num_experts = 0
        self.top_k = 0
        routers = [module for module in model.modules() if type(module).__name__ in _NORMALISES]
        if len(routers) != layers:
            raise RunError(
                f"routing replay found {len(routers)} routers it knows in {type(model).__name__}, the model has "
                f"{layers} routed layers; known are {', '.join(_NORMALISES)}; or choose routing_replay=none"
            )
        for layer, router in enumerate(routers):
            self.num_experts, self.top_k = int(router.num_experts), int(router.top_k)
            router.forward = self._forward(router, layer, router.forward)

    @contextmanager
    def using(self, experts: Tensor | None, present: Tensor | None) -> Iterator[None]:
        """Replay within the block; it must enclose the backward pass too.

        Args:
            experts: integers [positions, layers, top_k], or None: the routers choose.
            present: bool [positions]: False where the router chooses (padding); None: replay everywhere.
        """
        self._experts, self._present = experts, present
        try:
            yield
        finally:
            self._experts, self._present = None, None

    def _forward(self, router: Any, layer: int, free: Callable[[Tensor], Routed]) -> Callable[[Tensor], Routed]:
        normalise = _NORMALISES[type(router).__name__](router)

        def forward(hidden_states: Tensor) -> Routed:
            if self._experts is None:
                return free(hidden_states)
            logits = functional.linear(hidden_states.reshape(-1, router.hidden_dim), router.weight)
            probabilities = functional.softmax(logits, dtype=torch.float, dim=-1)
            chosen = self._experts[:, layer].long()
            if self._present is not None:
                chosen = torch.where(self._present[:, None], chosen, probabilities.topk(router.top_k, dim=-1).indices)
            scores = probabilities.gather(-1, chosen)
            if normalise:
                scores = scores / scores.sum(dim=-1, keepdim=True)
            return logits, scores.to(logits.dtype), chosen

        return forward
