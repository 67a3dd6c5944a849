"""vLLM's entry point into this package: registers the weight engine that reads a safetensors file.

vLLM calls `register` in each of its processes. Invariant: it imports nothing heavy and changes no behaviour; the engine
and its remedies for CPU weights live in `engine.inference.vllm_weights`, loaded only where it is asked for.
"""

BACKEND = "lego_file"
"""Name under which vLLM knows the weight engine (`--weight-transfer-config`)."""


def register() -> None:
    """Make `BACKEND` known to vLLM's factory; calling it again does nothing."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "engine.inference.vllm_weights", "FileWeightEngine")
