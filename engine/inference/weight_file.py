"""What a safetensors file holds, read from its header alone.

Invariant: a weight update is sent only if the file has exactly the tensors of the model that is served, name by name
and shape by shape: a forgotten tensor would otherwise stay old in silence.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import WeightSyncError

Shapes = Mapping[str, tuple[int, ...]]

_HEADER_LIMIT = 256 * 1024 * 1024
_SHOWN = 3


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape of every tensor. Raises WeightSyncError when it is no whole safetensors file."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _HEADER_LIMIT:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(stream.read(length))
            if not isinstance(header, dict):
                raise ValueError("a header that is no object")
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if file.stat().st_size != 8 + length + end:
            raise ValueError(f"{file.stat().st_size} bytes where the header says {8 + length + end}")
    except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
        raise WeightSyncError(f"{file} is no whole safetensors file: {error}") from error
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape over all safetensors files of a checkpoint folder."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes |= read_shapes(file)
    return shapes


def check_same(file: Path, served: Shapes) -> None:
    """Raises WeightSyncError unless `file` has the tensors of the served checkpoint, no more and no fewer."""
    offered = read_shapes(file)
    faults = {
        "lacks": sorted(served.keys() - offered.keys()),
        "has unknown": sorted(offered.keys() - served.keys()),
        "has other shapes for": sorted(
            name for name in served.keys() & offered.keys() if served[name] != offered[name]
        ),
    }
    told = [
        f"{fault} {len(names)} tensors ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for fault, names in faults.items()
        if names
    ]
    if told:
        raise WeightSyncError(f"{file} does not fit the served model: it {'; it '.join(told)}")
