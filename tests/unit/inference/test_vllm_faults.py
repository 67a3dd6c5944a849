"""vLLM's last words, as it really says them, are answered with keys of this configuration."""

import pytest

from engine.inference.vllm_faults import way_out

SETTINGS = {
    "python": None,
    "port": 8000,
    "max_concurrency": 8,
    "cpu_kv_cache_gb": 500,
    "gpu_memory_utilization": None,
    "arguments": {"max-model-lenn": 3},
}
CACHE = (
    "ValueError: Available memory on node 0 (20.05/23.21 GiB) on kv cache allocation is less than requested memory for "
    "kv (500.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other "
    "processes. | RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
NEEDED = (
    "ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.0 GiB). Try increasing `gpu_memory_utilization` or "
    "decreasing `max_model_len` when initializing the engine."
)
SAID = {
    "(exit code 137, killed by SIGKILL): loading": "it took more memory than there is, or was killed: end other "
    "programs, or lower inference.cpu_kv_cache_gb=500, inference.max_concurrency=8 or model.max_context",
    "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}": "it took more memory",
    CACHE: "lower inference.cpu_kv_cache_gb=500 or model.max_context, or end what else takes the memory",
    NEEDED: "raise inference.cpu_kv_cache_gb=500, or lower model.max_context",
    "api_server.py: error: unrecognized arguments: --max-model-lenn": "mend inference.arguments={'max-model-lenn': 3}",
    "OSError: [Errno 98] Address already in use": "set inference.port=8000 to another port, or null for a private",
    "ModuleNotFoundError: No module named 'torchaudio'": "inference.python=None lacks a package: run scripts/setup",
    "ValueError: something new": "see its log; the keys of inference and of model decide how it starts",
}


@pytest.mark.parametrize("said", SAID)
def test_way_out(said: str) -> None:
    assert way_out(said, SETTINGS).startswith(SAID[said])


def test_on_a_gpu_the_share_of_its_memory_is_named() -> None:
    on_gpu = {**SETTINGS, "gpu_memory_utilization": 0.9}
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert "lower inference.gpu_memory_utilization=0.9" in way_out(said, on_gpu)
