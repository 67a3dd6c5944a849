"""The worker's side of a weight update: loads a safetensors file of Hugging Face names into vLLM's model.

Runs inside vLLM's worker processes only. Invariant: after `finish_weight_update` each layer computes with the file's
weights. vLLM 0.30 breaks that on CPUs in two places, without any error: it packs expert weights for its kernel at the
first load only, so a reload leaves them in the wrong layout; and an output head tied to the embeddings keeps the packed
copy of the old ones. So this engine watches each sparse layer while an update runs and packs where vLLM did not, and
packs tied heads anew at the end. On other devices, and where vLLM does it itself, it changes nothing.
`LEGO_RL_CPU_REPACK=0` switches both remedies off, for the test that the probe sees the corruption.
"""

# ruff: noqa: TID253 (only vLLM's own worker processes load this module)

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform


@dataclass
class FileInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nothing to agree on beforehand."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One update: the path of a safetensors file that each worker can read."""

    path: str


class FileWeightEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):  # type: ignore[misc]
    """Reads weights from a file; works on every device, and shards as the model's own loaders do."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:  # noqa: ARG002 (vLLM's interface)
        return

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)
        self._mending = current_platform.is_cpu() and os.environ.get("LEGO_RL_CPU_REPACK") != "0"
        self._watched = list(_watch(self.model)) if self._mending else []

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, whose device synchronisation fails where there is no accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        self.model.load_weights(weights=_tensors(Path(update_info.path)))

    def finish_weight_update(self) -> None:
        try:
            finalize_layerwise_reload(self.model, self.model_config)
        finally:
            for method in self._watched:
                del method._setup_kernel
            self._watched = []
        if self._mending:
            _pack_tied_heads(self.model)

    def shutdown(self) -> None:
        return


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a file, one at a time."""
    with safe_open(str(path), framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            yield name, file.get_tensor(name)


def _watch(model: torch.nn.Module) -> Iterator[Any]:
    """Shadow `_setup_kernel` of every sparse layer with CPU experts; yields the methods that were shadowed."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if (
            isinstance(method, UnquantizedFusedMoEMethod)
            and method.unquantized_backend == UnquantizedMoeBackend.CPU
            and "_setup_kernel" not in vars(method)
        ):
            method._setup_kernel = _repacking(method)
            yield method


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """Pack every unquantised output head from its weight as it is now; cheap, and right for heads of their own too."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            module.quant_method.process_weights_after_loading(module)


def _repacking(method: Any) -> Callable[..., None]:
    """vLLM's `_setup_kernel`, followed by the experts' own packing unless vLLM did it itself."""
    original = method._setup_kernel

    def setup(layer: Any, w13: torch.Tensor, w2: torch.Tensor) -> None:
        experts = method.moe_kernel.fused_experts if method.moe_kernel is not None else None
        if experts is None:
            original(layer=layer, w13=w13, w2=w2)
            return
        pack = experts.process_weights_after_loading
        packed = False

        def watch(layer: Any) -> None:
            nonlocal packed
            packed = True
            pack(layer)

        experts.process_weights_after_loading = watch
        try:
            original(layer=layer, w13=w13, w2=w2)
        finally:
            del experts.process_weights_after_loading
        if not packed:
            pack(layer)

    return setup
