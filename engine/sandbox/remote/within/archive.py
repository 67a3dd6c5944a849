"""Trees as tar streams, between a pod and the engine, where nothing that lies in the tree may lead the way.

Packing walks descriptors with `O_NOFOLLOW`, leaves special files behind, keeps hard links and holes, and opens what its
owner has closed (an agent could otherwise hide its tree, or break its own extraction). Unpacking writes into a new
folder: names without `..`, folders and files first, links last, so that none is ever followed.
"""

import contextlib
import gzip
import os
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

from engine.core.errors import SandboxError

MAX_DEPTH = 128
"""Folder levels that are packed, as in files."""
MAX_PATH_BYTES = 2048
"""Length of a path that is packed, as in files."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 512
_CHUNK = 1 << 20


def pack(folder: int, stream: IO[bytes]) -> None:
    """Write an open folder's contents to `stream`."""
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _Packing(tar).folder(folder, "")


def pack_tree(root: Path, stream: IO[bytes]) -> None:
    """The same of a folder that is named."""
    folder = os.open(root, _FOLDER)
    try:
        pack(folder, stream)
    finally:
        os.close(folder)


class _Packing:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._linked: dict[tuple[int, int], str] = {}

    def folder(self, folder: int, where: str) -> None:
        for name in sorted(os.listdir(folder)):
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                self._entry(name, folder, f"{where}{name}")

    def _entry(self, name: str, folder: int, path: str) -> None:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            return
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        info = tarfile.TarInfo(path)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
            self._tar.addfile(info)
        elif stat.S_ISDIR(status.st_mode) and path.count("/") < MAX_DEPTH:
            info.type = tarfile.DIRTYPE
            self._tar.addfile(info)
            inner = _opened(name, folder, _FOLDER, 0o500)
            try:
                self.folder(inner, f"{path}/")
            finally:
                os.close(inner)
        elif stat.S_ISREG(status.st_mode):
            self._file(info, name, folder)

    def _file(self, info: tarfile.TarInfo, name: str, folder: int) -> None:
        with os.fdopen(_opened(name, folder, _FILE, 0o400), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            known = self._linked.setdefault((status.st_dev, status.st_ino), info.name)
            if known != info.name:
                info.type, info.linkname = tarfile.LNKTYPE, known
                self._tar.addfile(info)
            elif status.st_blocks * _BLOCK < status.st_size:
                self._sparse(info, file, status.st_size)
            else:
                info.size = status.st_size
                self._tar.addfile(info, file)

    def _sparse(self, info: tarfile.TarInfo, file: IO[bytes], size: int) -> None:
        """A file with holes, in the format that tar calls 1.0: a map of what is there, then that."""
        there = [*_data(file.fileno(), size), (size, 0)]
        table = "\n".join([str(len(there)), *(str(number) for pair in there for number in pair), ""]).encode()
        table += b"\0" * (-len(table) % _BLOCK)
        name = info.name
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": name,
            "GNU.sparse.realsize": str(size),
        }
        info.size = len(table) + sum(length for _, length in there)
        self._tar.addfile(info, _Joined(table, file, there))  # type: ignore[arg-type]


class _Joined:
    """A table and the pieces of a file that it names, read one after the other."""

    def __init__(self, table: bytes, file: IO[bytes], pieces: list[tuple[int, int]]) -> None:
        self._ahead, self._file, self._pieces = table, file, pieces

    def read(self, length: int) -> bytes:
        while len(self._ahead) < length and self._pieces:
            offset, size = self._pieces.pop(0)
            taken = min(size, _CHUNK)
            if size > taken:
                self._pieces.insert(0, (offset + taken, size - taken))
            self._file.seek(offset)
            self._ahead += self._file.read(taken)
        found, self._ahead = self._ahead[:length], self._ahead[length:]
        return found


def _data(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Where a file holds data: offset and length."""
    found, offset = [], 0
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # nothing but a hole up to the end
            break
        offset = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        found.append((start, offset - start))
    return found


def _opened(name: str, folder: int, flags: int, needed: int) -> int:
    """Open an entry; where its mode forbids it, after giving its owner the right that is `needed`."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(handle)
            if stat.S_ISLNK(status.st_mode):
                raise
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | needed)  # noqa: PTH101
        finally:
            os.close(handle)
        return os.open(name, flags, dir_fd=folder)


# ---------------------------------------------------------------- unpacking


def unpack(stream: IO[bytes], target: Path) -> None:
    """Unpack into a folder that nobody else writes in. Raises SandboxError for names that lead out of it."""
    links: list[tarfile.TarInfo] = []
    folders: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=stream, mode="r:gz") as tar:
            for member in tar:
                path = target / _inside(member.name)
                if member.isdir():
                    path.mkdir(exist_ok=True)
                    folders.append(member)
                elif member.issym():
                    links.append(member)
                elif member.islnk():
                    os.link(target / _inside(member.linkname), path, follow_symlinks=False)
                elif member.isreg():
                    _write(tar, member, path)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SandboxError(f"what came out of the sandbox cannot be unpacked: {error}") from error
    for member in links:
        (target / _inside(member.name)).symlink_to(member.linkname)
    for member in reversed(folders):
        _seal(target / _inside(member.name), member)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    pieces: Any = getattr(member, "sparse", None)
    with path.open("xb") as file:
        for offset, length in pieces or [(0, member.size)]:
            source.seek(offset)
            file.seek(offset)
            while length > 0 and (chunk := source.read(min(_CHUNK, length))):
                file.write(chunk)
                length -= len(chunk)
        file.truncate(member.size)
    _seal(path, member)


def _seal(path: Path, member: tarfile.TarInfo) -> None:
    path.chmod(member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SandboxError(f"{name!r} lies outside what was asked for")
    return path
