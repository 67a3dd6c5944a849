"""One operation on the room's files, in the keeper: `keep write|read|upload|download|end`.

Standard input holds a line of JSON, then what the operation takes; standard output gets what it gives; with exit code 3
the last line of the errors is JSON that holds `error`. Paths are walked as on a host (see files): the room is to the
keeper what a mounted root is to the local runtimes, and nothing of the agent's ever runs here.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from engine.core.errors import SandboxError
from engine.sandbox import files
from engine.sandbox.kubernetes.inpod import archive
from engine.sandbox.kubernetes.inpod.main import SIGNAL

FAILED = 3
ROOM, STAGE = Path("/room"), Path("/stage")


def main(operation: str) -> None:
    with os.fdopen(os.dup(0), "rb") as given, os.fdopen(os.dup(1), "wb") as told:
        request = json.loads(given.readline())
        try:
            _OPERATIONS[operation](request, given, told)
        except (SandboxError, OSError) as error:
            print(json.dumps({"error": str(error)}), file=sys.stderr)
            sys.exit(FAILED)


def _owner() -> files.Owner:
    return files.Owner(uid=os.getuid(), gid=os.getgid())


def _write(request: dict[str, Any], given: IO[bytes], _told: IO[bytes]) -> None:
    files.write(ROOM, {path: given.read(length) for path, length in request["files"]}, _owner())


def _read(request: dict[str, Any], _given: IO[bytes], told: IO[bytes]) -> None:
    contents = files.read(ROOM, request["path"], request["limit"])
    told.write(b"0" if contents is None else b"1" + contents)


def _upload(request: dict[str, Any], given: IO[bytes], _told: IO[bytes]) -> None:
    with tempfile.TemporaryDirectory(dir=STAGE) as folder:
        packed, tree = Path(folder, "packed"), Path(folder, "tree")
        with packed.open("wb") as file:
            left = request["length"]
            while left and (chunk := given.read(min(1 << 20, left))):
                file.write(chunk)
                left -= len(chunk)
        tree.mkdir()
        with packed.open("rb") as file:
            archive.unpack(file, tree)
        files.upload(tree, ROOM, request["target"], _owner())


def _download(request: dict[str, Any], _given: IO[bytes], told: IO[bytes]) -> None:
    folder = files.open_folder(ROOM, request["source"])
    try:
        archive.pack(folder, told)
    finally:
        os.close(folder)


def _end(_request: dict[str, Any], _given: IO[bytes], _told: IO[bytes]) -> None:
    (SIGNAL / "end").touch()


_OPERATIONS = {"write": _write, "read": _read, "upload": _upload, "download": _download, "end": _end}
