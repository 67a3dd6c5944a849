"""Where content-addressed caches live: never in the run, never in the repository."""

import os
from hashlib import sha256
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cache_dir() -> Path:
    """`$LEGO_RL_CACHE`, else `$XDG_CACHE_HOME/lego-rl`, else `~/.cache/lego-rl`; absolute, since it is mounted."""
    explicit = os.environ.get("LEGO_RL_CACHE")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "lego-rl"


def compiled_dir() -> Path:
    """What torch compiles, apart for each kind of processor: the code fits the one it was compiled for, and the cache
    may lie in a home that machines share."""
    told = _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else ()
    processor = sorted({line for line in told if line.startswith(("model name", "flags", "Features"))})
    return cache_dir() / "torchinductor" / sha256("\n".join(processor).encode()).hexdigest()[:12]
