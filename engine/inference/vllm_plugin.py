"""vLLM's entry point into this package: registers the weight engine that reads a safetensors file.

vLLM calls `register` in each of its processes. Invariant: it imports nothing heavy and changes no behaviour but how a
worker waits (`PAUSE`); the engine and its remedies for CPU weights live in `engine.inference.vllm_weights`, loaded only
where it is asked for.
"""

import os
import time
from functools import partial

BACKEND = "lego_file"
"""Name under which vLLM knows the weight engine (`--weight-transfer-config`)."""
PAUSE = "LEGO_RL_VLLM_PAUSE_S"
"""Environment variable: seconds that a process which waits for another of vLLM's sleeps before it looks again. Unset:
vLLM's own way, which only yields, so that a worker takes a whole core for a second after each request; where there are
two, that is half of what sandboxes and harness could have. (Letting it sleep until it is notified, without looking, was
tried: weight updates then took 6.5 s instead of 1, about the 5 s after which it looks again by itself.)"""

LONGEST_S = 1.0
"""A longer pause would hold up every token for seconds."""


def register() -> None:
    """Make `BACKEND` known to vLLM's factory, and set how processes wait; calling it again does nothing."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "engine.inference.vllm_weights", "FileWeightEngine")
    if PAUSE in os.environ:
        _pause(read_pause(os.environ[PAUSE]))


def read_pause(text: str) -> float:
    """The setting in seconds. Raises ValueError, in words for a person."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_S:  # NaN fails too
        raise ValueError(f"{PAUSE}={text!r} is no number of seconds from 0 to {LONGEST_S:g}")
    return seconds


def _pause(seconds: float) -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = partial(time.sleep, seconds)
