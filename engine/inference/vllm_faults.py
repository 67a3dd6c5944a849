"""Why vLLM does not start, in keys of this configuration: what it says is about its own options.

Invariant: vLLM is not imported here. Last words that are not known are answered with the log.
"""

import re
import subprocess
from collections.abc import Mapping
from typing import Any

_ASK_S = 60
_NO_MEMORY = (
    r"killed by SIGKILL|Failed core proc\(s\): \{[^}]*: -9|MemoryError|[Cc]an(?:no|')t allocate memory|"
    r"[Oo]ut ?[Oo]f ?[Mm]emory"
)
_KNOWN: Mapping[str, str] = {
    _NO_MEMORY: "it took more memory than there is, or was killed: end other programs, or lower {cache}, "
    "inference.max_concurrency={max_concurrency} or model.max_context",
    r"KV cache is needed": "raise {cache}, or lower model.max_context",
    r"VLLM_CPU_KVCACHE_SPACE|cache blocks|gpu[_-]memory[_-]utilization": "lower {cache} or model.max_context, or end "
    "what else takes the memory",
    r"unrecognized arguments|: error: argument": "mend inference.arguments={arguments}",
    r"[Aa]ddress already in use": "set inference.port={port} to another port, or null for a private Unix socket",
    r"No module named|ModuleNotFoundError|ImportError": "inference.python={python} lacks a package: run scripts/setup, "
    "or name an interpreter that has vLLM",
}
"""Last words → way out; the first that fits."""
_UNKNOWN = "see its log; the keys of inference and of model decide how it starts"


def way_out(said: str, settings: Mapping[str, Any]) -> str:
    """`settings`: the keys of `inference`."""
    cache = "gpu_memory_utilization" if settings["gpu_memory_utilization"] is not None else "cpu_kv_cache_gb"
    shown = {**settings, "cache": f"inference.{cache}={settings[cache]}"}
    return next((way.format_map(shown) for pattern, way in _KNOWN.items() if re.search(pattern, said)), _UNKNOWN)


def interpreter_fault(python: str) -> str:
    """Why this interpreter cannot run vLLM, which is not imported for it; empty when it can."""
    question = "import importlib.util as u; print(u.find_spec('vllm') is not None)"
    try:
        asked = subprocess.run(
            [python, "-c", question],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot be asked for vLLM ({' '.join(str(error).split())})"
    answer = asked.stdout.strip()
    if answer not in ("True", "False"):
        return f"is no Python interpreter (exit code {asked.returncode})"
    return "" if answer == "True" else "has no vLLM"
