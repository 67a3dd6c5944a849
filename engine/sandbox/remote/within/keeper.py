"""One operation on a sandbox's files, in a process of ours: `keep write|read|upload|download`.

Standard input holds a line of JSON, then what the operation takes; standard output gets what it gives; with exit code 3
the last line of the errors is JSON that holds `error`. Paths are walked as on a host (see files): the room is to this
process what a mounted root is to the local runtimes, and nothing of the agent's is ever run by it.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.core.errors import SandboxError
from engine.sandbox import files
from engine.sandbox.remote.within import archive

FAILED = 3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where files lie and whose they become."""

    room: Path
    """What a path of the sandbox is below of."""
    stage: Path
    """Folder that the agent cannot reach, for what is on its way."""
    owner: files.Owner


def main(operation: str, place: Place) -> None:
    with os.fdopen(os.dup(0), "rb") as given, os.fdopen(os.dup(1), "wb") as told:
        request = json.loads(given.readline())
        try:
            _OPERATIONS[operation](place, request, given, told)
        except (SandboxError, OSError) as error:
            print(json.dumps({"error": str(error)}), file=sys.stderr)
            sys.exit(FAILED)


def _write(place: Place, request: dict[str, Any], given: IO[bytes], _told: IO[bytes]) -> None:
    files.write(place.room, {path: given.read(length) for path, length in request["files"]}, place.owner)


def _read(place: Place, request: dict[str, Any], _given: IO[bytes], told: IO[bytes]) -> None:
    contents = files.read(place.room, request["path"], request["limit"])
    told.write(b"0" if contents is None else b"1" + contents)


def _upload(place: Place, request: dict[str, Any], given: IO[bytes], _told: IO[bytes]) -> None:
    with tempfile.TemporaryDirectory(dir=place.stage) as folder:
        packed, tree = Path(folder, "packed"), Path(folder, "tree")
        with packed.open("wb") as file:
            left = request["length"]
            while left and (chunk := given.read(min(1 << 20, left))):
                file.write(chunk)
                left -= len(chunk)
        tree.mkdir()
        with packed.open("rb") as file:
            archive.unpack(file, tree)
        files.upload(tree, place.room, request["target"], place.owner)


def _download(place: Place, request: dict[str, Any], _given: IO[bytes], told: IO[bytes]) -> None:
    try:
        folder = files.open_folder(place.room, request["source"])
    except files.NoFolder:  # what the agent took away, or put a link in the place of, holds nothing
        with tempfile.TemporaryDirectory(dir=place.stage) as nothing:
            archive.pack_tree(Path(nothing), told)
        return
    try:
        archive.pack(folder, told)
    finally:
        os.close(folder)


_OPERATIONS = {"write": _write, "read": _read, "upload": _upload, "download": _download}
