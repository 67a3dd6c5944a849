"""What is written beside a run so that it can be understood and repeated: configuration, code, dependencies, hardware,
the fingerprints of its tasks and of the checkpoint it started from.

Invariant: `configuration_hash` is the same for the same results-to-be, whatever the order of keys, the place of the run
directory or what is merely observed.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from engine.config.built import Built
from engine.config.credentials import shown, without
from engine.config.schemas import ROOT

NOT_HASHED = ("run", "job", "observe", "inference.port", "inference.python")
"""Keys that change where a run lies, what is done with it, what is seen of it, how its parts talk and where a program
lies on this machine, never its results: `job=show` names the directory that the run will have, and a port that is taken
can be changed midway."""


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration, resolved or as it was written, that decides results; numbers are equal as written 1
    and 1.0. Secrets decide none."""
    plain: dict[str, Any] = _canonical(without(config))
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


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values; None where one side lacks the key."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield key, old, new


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


def describe(built: Built, data: Mapping[str, str], checkpoint: str) -> dict[str, Any]:
    """The contents of a run's `config.yaml`, plain values only and no secret.

    `data`: task id → fingerprint; `checkpoint`: fingerprint of the model's folder."""
    return {
        "configuration": shown(built.config),
        "configuration_hash": built.hash,
        "interpolated": dict(built.interpolated),
        "command_line": list(built.command_line),
        "seed": built.seed,
        **surroundings(),
        "checkpoint": checkpoint,
        "data": dict(data),
    }


def surroundings() -> dict[str, Any]:
    """What a run of any configuration meets here: code, interpreter, dependencies, machine."""
    return {
        "code": code_version(ROOT),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hardware": hardware(),
        "dependencies": dependencies(),
    }


def code_version(root: Path) -> dict[str, Any]:
    """Git commit and whether tracked files differ from it (None where `root` is no checkout or there is no git), and a
    fingerprint of the code itself, which also tells two changed trees apart."""
    commit = _answer("git", "-C", str(root), "rev-parse", "HEAD")
    changed = _answer("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no") if commit else None
    digest = hashlib.sha256()
    for file in sorted((root / "engine").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            _add(digest, file, file.relative_to(root).as_posix())
    return {
        "commit": commit,
        "dirty": None if commit is None else bool(changed),
        "fingerprint": digest.hexdigest()[:16],
    }


def dependencies() -> dict[str, str]:
    """Every installed distribution and its version, by name."""
    found = {distribution.name.lower(): distribution.version for distribution in distributions()}
    return dict(sorted(found.items()))


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in GiB, and GPUs as their driver names them."""
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    gpus = _answer("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return {
        "processor": model.group(1).strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": [line.strip() for line in gpus.splitlines()],
    }


_WHOLE = 64 << 20
"""Bytes of a file that are read; of a larger one as many, in even shares of all of it."""
_SHARE = 1 << 20


def fingerprint(folder: Path) -> str:
    """sha256 (hex, 16 digits) over the files of a checkpoint's folder. It tells checkpoints apart within seconds, also
    those of hundreds of gigabytes, and is no proof against one that was made to look like another."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") for part in inside.parts):
            _add(digest, file, inside.as_posix())
    return digest.hexdigest()[:16]


def _add(digest: Any, file: Path, name: str) -> None:
    size = file.stat().st_size
    digest.update(f"{name}\0{size}\0".encode())
    with file.open("rb") as stream:
        if size <= _WHOLE:
            digest.update(stream.read())
            return
        shares = _WHOLE // _SHARE
        for share in range(shares):
            stream.seek((size - _SHARE) * share // (shares - 1))
            digest.update(stream.read(_SHARE))


def _answer(*command: str) -> str | None:
    """What a program prints; None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
