"""What is written beside a run so that it can be understood and repeated: configuration, code, dependencies, seeds.

Invariant: `configuration_hash` is the same for the same results-to-be, whatever the order of keys, the place of the run
directory or what is merely observed.
"""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from engine.config.built import Built
from engine.config.schemas import ROOT

NOT_HASHED = ("run", "job", "observe", "inference.port")
"""Keys that change where a run lies, what is done with it, what is seen of it and how its parts talk, never its
results: `job=show` names the directory that the run will have, and a port that is taken can be changed midway."""


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that decides results; numbers are equal as written 1 and 1.0."""
    plain: dict[str, Any] = _canonical(config)
    for key in NOT_HASHED:
        parent, _, name = key.rpartition(".")
        holder = plain.get(parent) if parent else plain
        if isinstance(holder, dict):
            holder.pop(name, None)
    return plain


def configuration_hash(config: Mapping[str, Any]) -> str:
    """sha256 (hex, 12 digits) of what is decisive."""
    canonical = json.dumps(decisive(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_canonical(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def run_directory(config: Mapping[str, Any]) -> Path:
    """`<run.root>/<run.name>`; without a name `<experiment>-<configuration hash>`."""
    run = config["run"]
    return Path(run["root"]) / (run["name"] or f"{config['experiment']}-{configuration_hash(config)}")


def describe(built: Built) -> dict[str, Any]:
    """The contents of a run's `config.yaml`: plain values only."""
    return {
        "configuration": dict(built.config),
        "configuration_hash": built.hash,
        "command_line": list(built.command_line),
        "seed": built.seed,
        "code": code_version(ROOT),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "dependencies": dependencies(),
    }


def code_version(root: Path) -> dict[str, Any]:
    """Git commit and whether tracked files differ from it; None where `root` is no checkout or there is no git."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}


def dependencies() -> dict[str, str]:
    """Every installed distribution and its version, by name."""
    found = {distribution.name.lower(): distribution.version for distribution in distributions()}
    return dict(sorted(found.items()))


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
