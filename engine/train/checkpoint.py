"""What the trainer writes: weights for the engine, and its own state. Torch and safetensors.

Invariant: a file or folder appears whole or not at all (a temporary sibling, then a rename), a checkpoint also after a
power cut; weights on their way to an engine are not waited for, since a restart exports them again.
Refuses: a checkpoint that is incomplete, or belongs to another model or another start of the run.
"""

import contextlib
import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engine.core.errors import RunError
from engine.core.whole import draft_of, make_folder, replace_folder

_FULL = 1 << 20
"""Bytes left below which a disk counts as full."""
_WEIGHTS, _STATE, _META = "weights.safetensors", "state.pt", "trainer.json"


def fingerprint(parameters: Mapping[str, Any]) -> str:
    """sha256 over names, types, shapes and bytes of all parameters, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        tensor = parameters[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def export_weights(model: Any, path: Path) -> None:
    """One safetensors file with the names of `save_pretrained` (a tensor per expert), as engines load them."""
    with _sibling(path) as folder:
        model.save_pretrained(folder, max_shard_size="100TB")
        written = sorted(folder.glob("*.safetensors"))
        if len(written) != 1:
            raise RunError(f"{type(model).__name__}.save_pretrained wrote {len(written)} safetensors files, not 1")
        written[0].replace(path)


def save_state(
    directory: Path, weights: Mapping[str, Any], state: Mapping[str, Any], meta: Mapping[str, object]
) -> None:
    """Write a checkpoint folder; an older one of that name is replaced once the new one is whole."""
    with _sibling(directory) as folder:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, folder / _WEIGHTS)
        torch.save(dict(state), folder / _STATE)
        (folder / _META).write_text(json.dumps(meta, indent=2) + "\n")
        replace_folder(folder, directory)


def load_state(directory: Path, weights: Mapping[str, Any], expected: Mapping[str, object]) -> dict[str, Any]:
    """Copy a checkpoint's weights into `weights` and return its state.

    `expected` are the entries of the meta file that must be equal. Raises RunError, and then changes nothing.
    """
    try:
        meta = json.loads((directory / _META).read_text())
        loaded = load_file(directory / _WEIGHTS)
        state: dict[str, Any] = torch.load(directory / _STATE, weights_only=True, map_location="cpu")
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        way_out = "delete the folder, and the same command goes on from the checkpoint before it"
        raise RunError(f"checkpoint {directory} cannot be read ({reason}); {way_out}") from error
    for key, value in expected.items():
        if meta.get(key) != value:
            raise RunError(f"checkpoint {directory} has {key} {meta.get(key)!r}, this run has {value!r}")
    names = weights.keys() | loaded.keys()
    different = {name for name in names if not _same_shape(weights.get(name), loaded.get(name))}
    if different:
        raise RunError(f"checkpoint {directory} does not fit the model at {', '.join(sorted(different)[:3])}")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(loaded[name])
    return state


def _same_shape(a: Any, b: Any) -> bool:
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype


@contextlib.contextmanager
def _sibling(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, removed at the end unless it was renamed.

    Raises RunError where the disk does not take what is written in it."""
    folder: Path | None = None
    try:
        make_folder(path.parent)
        folder = draft_of(path)
        folder.mkdir()
        folder.chmod(0o755)
        yield folder
    except (OSError, RuntimeError, SafetensorError) as error:  # torch says of a full disk only that a position is wrong
        reason = error.strerror if isinstance(error, OSError) else None
        if reason is None and shutil.disk_usage(path.parent).free < _FULL:
            reason = os.strerror(errno.ENOSPC)
        reason = reason or " ".join(str(error).split())
        raise RunError(f"{path} cannot be written: {reason}; once it can, the same command goes on") from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
