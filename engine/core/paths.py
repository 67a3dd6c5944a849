"""Where content-addressed caches live: never in the run, never in the repository."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$LEGO_RL_CACHE`, else `$XDG_CACHE_HOME/lego-rl`, else `~/.cache/lego-rl`; absolute, since it is mounted."""
    explicit = os.environ.get("LEGO_RL_CACHE")
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "lego-rl"
