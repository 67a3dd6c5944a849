"""Where vLLM's processes put their files: one temporary folder that ends with the server, and one cache that stays.

vLLM makes sockets and rendezvous files by itself in the folder for temporary files and leaves them there, also at an
orderly stop. Invariant: they lie in the server's own folder, removed when the server ends or, after a `kill -9`, by the
next one or by `job=reap`. What torch compiles for it goes to the cache, for the next one.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.core.errors import ConfigError
from engine.core.paths import compiled_dir

FOLDER = "vllm"
"""The folder's kind (`engine/core/temporary.py`)."""
_LONGEST = 107 - len(f"/lego-rl-{FOLDER}-{2**22}-12345678/{'u' * 36}")
"""Bytes that the path above it may have: a socket's has 107 at most (unix(7)), and vLLM names its own by a UUID."""


def folder_problems() -> Iterator[ConfigError]:
    """A folder too deep for sockets: vLLM would die at its start without naming it."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _LONGEST:
        problem = f"vLLM's sockets lie there, and a path of over {_LONGEST} bytes is too long for them"
        yield ConfigError("TMPDIR", folder, problem, "set it to a shorter path, for example TMPDIR=/tmp")


def server_variables(folder: Path, cpu_kv_cache_gb: float | None) -> dict[str, str]:
    """Environment of a server whose own files go to `folder`.

    Development endpoints carry weight updates; nothing is fetched from a hub and nothing is reported. Precompiled
    headers would not go to the cache but to the folder, so each server would make its own (5 s)."""
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(compiled_dir())),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    if cpu_kv_cache_gb is not None:
        variables["VLLM_CPU_KVCACHE_SPACE"] = f"{cpu_kv_cache_gb:g}"
    return variables
