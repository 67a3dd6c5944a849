"""Files of a sandbox, touched from the host side, where nothing that lies in the sandbox may lead the way.

Every path is walked component by component with `O_NOFOLLOW` from the sandbox's root, so a link planted inside can
never name a file of the host. Nothing here runs anything in the sandbox.
Refuses relative paths, `..`, and links on the way (SandboxError); copying out leaves special files behind, because no
patch can hold one and no agent may break its own extraction with one.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import SandboxError

MAX_DEPTH = 128
"""Folder levels that are copied; deeper ones hold nothing that a repository has."""
MAX_PATH_BYTES = 2048
"""Length of a path that is copied out: a longer one could not be named on the host, below a folder of its own."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The sandbox's user, as the kernel numbers it."""

    uid: int
    gid: int


def parts(path: str) -> tuple[str, ...]:
    """Components of an absolute sandbox path. Raises SandboxError for any other."""
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if not path.startswith("/") or ".." in names or "\0" in path:
        raise SandboxError(f"{path!r} is no absolute path without `..`")
    return names


def write(root: Path, files: Mapping[str, bytes], owner: Owner) -> None:
    """Write files (sandbox path → contents, mode 0644), replacing what is there; new parents belong to the user."""
    for path, contents in files.items():
        names = parts(path)
        if not names:
            raise SandboxError("`/` is no file")
        folder = _descend(root, names[:-1], path, create=owner)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(names[-1], dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(names[-1], flags, 0o644, dir_fd=folder), "wb") as file:
                os.fchown(file.fileno(), owner.uid, owner.gid)
                os.fchmod(file.fileno(), 0o644)
                file.write(contents)
        except OSError as error:
            raise SandboxError(f"cannot write {path}: {error.strerror}") from error
        finally:
            os.close(folder)


def read(root: Path, path: str, limit: int) -> bytes | None:
    """At most `limit` bytes of a regular file; None when there is none or a link is on the way."""
    names = parts(path)
    if not names:
        return None
    try:
        folder = _descend(root, names[:-1], path, create=None)
    except SandboxError:
        return None
    try:
        descriptor = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit)


def make_folder(root: Path, path: str, owner: Owner) -> None:
    """Make a sandbox folder with its parents and give the folder itself to the user."""
    folder = _descend(root, parts(path), path, create=owner)
    try:
        os.fchown(folder, owner.uid, owner.gid)
    finally:
        os.close(folder)


def upload(source: Path, root: Path, target: str, owner: Owner) -> None:
    """Copy the contents of a host folder into a sandbox folder, owned by the user.

    Links stay links, modes stay but for setuid bits. Raises SandboxError for special files."""
    inner = _descend(root, parts(target), target, create=owner)
    try:
        outer = os.open(source, _FOLDER)
    except OSError as error:
        os.close(inner)
        raise SandboxError(f"cannot read {source}: {error.strerror}") from error
    try:
        _Copy(inner, owner).folder(outer, inner, ())
    except OSError as error:
        raise SandboxError(f"cannot copy {source} to {target}: {error.strerror}") from error
    finally:
        os.close(outer)
        os.close(inner)


class NoFolder(SandboxError):
    """A sandbox path on which something is missing, is no folder, or is a link."""


def download(root: Path, source: str, target: Path) -> None:
    """Copy the contents of a sandbox folder into a new host folder, owned by the caller.

    One that the sandbox's processes took away, or put a link in the place of, holds nothing; where the root itself is
    gone, it is lost with all else (SandboxError)."""
    try:
        inner = _descend(root, parts(source), source, create=None)
    except NoFolder:
        if not root.is_mount():
            raise
        target.mkdir(parents=True)
        return
    try:
        target.mkdir(parents=True)
        outer = os.open(target, _FOLDER)
        try:
            _Copy(outer, None).folder(inner, outer, ())
        finally:
            os.close(outer)
    except OSError as error:
        raise SandboxError(f"cannot copy {source} out of the sandbox: {error.strerror}") from error
    finally:
        os.close(inner)


def open_folder(root: Path, path: str) -> int:
    """Open a sandbox folder, following nothing; the caller closes the descriptor. Raises SandboxError."""
    return _descend(root, parts(path), path, create=None)


def _descend(root: Path, names: tuple[str, ...], path: str, create: Owner | None) -> int:
    """Open a folder below `root`, following nothing; the caller closes the descriptor."""
    folder = os.open(root, _FOLDER)
    try:
        for name in names:
            try:
                below = os.open(name, _FOLDER, dir_fd=folder)
            except FileNotFoundError:
                if create is None:
                    raise
                os.mkdir(name, 0o755, dir_fd=folder)
                below = os.open(name, _FOLDER, dir_fd=folder)
                os.fchown(below, create.uid, create.gid)
                os.fchmod(below, 0o755)
            os.close(folder)
            folder = below
    except OSError as error:
        os.close(folder)
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        reason = "a component is a link or no folder" if is_link else error.strerror
        kind = NoFolder if is_link or error.errno == errno.ENOENT else SandboxError
        raise kind(f"cannot open {path} in the sandbox: {reason}") from error
    return folder


class _Copy:
    """One recursive copy between two open folders, without following links.

    With an owner it copies in, and refuses what it cannot copy; without one it copies out, leaves out what it cannot
    copy, and keeps hard links: a thousand names of one file cost one file."""

    def __init__(self, top: int, owner: Owner | None) -> None:
        self._top, self._owner = top, owner
        self._linked: dict[tuple[int, int], str] = {}

    def folder(self, source: int, target: int, where: tuple[str, ...]) -> None:
        """Copy all entries of one open folder (at `where` below the top) into another, then its mode and times."""
        for name in sorted(os.listdir(source)):
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                self._entry(name, source, target, where)
        self._seal(target, os.fstat(source))

    def _entry(self, name: str, source: int, target: int, where: tuple[str, ...]) -> None:
        if not self._owner and len(os.fsencode("/".join((*where, name)))) > MAX_PATH_BYTES:
            return
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            if self._owner:
                os.chown(name, self._owner.uid, self._owner.gid, dir_fd=target, follow_symlinks=False)
        elif stat.S_ISDIR(mode) and len(where) < MAX_DEPTH:
            self._below(name, source, target, where)
        elif stat.S_ISREG(mode):
            self._file(name, source, target, where)
        elif self._owner:
            raise SandboxError(f"{name!r} is no file, folder or link, or lies more than {MAX_DEPTH} folders deep")

    def _below(self, name: str, source: int, target: int, where: tuple[str, ...]) -> None:
        inner = os.open(name, _FOLDER, dir_fd=source)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=target)
            outer = os.open(name, _FOLDER, dir_fd=target)
            try:
                self.folder(inner, outer, (*where, name))
            finally:
                os.close(outer)
        finally:
            os.close(inner)

    def _file(self, name: str, source: int, target: int, where: tuple[str, ...]) -> None:
        inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
        try:
            status = os.fstat(inner)
            if not stat.S_ISREG(status.st_mode) or self._link(status, name, target, where):
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=target)
            outer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            try:
                copy_data(inner, outer, status.st_size)
                self._seal(outer, status)
            finally:
                os.close(outer)
        finally:
            os.close(inner)

    def _link(self, status: os.stat_result, name: str, target: int, where: tuple[str, ...]) -> bool:
        """Copying out, make a further name of a file that was copied already; False: it is yet to be copied."""
        if self._owner or status.st_nlink == 1:
            return False
        key = (status.st_dev, status.st_ino)
        if key not in self._linked:
            self._linked[key] = "/".join((*where, name))
            return False
        try:
            os.link(self._linked[key], name, src_dir_fd=self._top, dst_dir_fd=target, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            self._linked[key] = "/".join((*where, name))  # the host allows fewer names of one file: begin a copy
            return False
        return True

    def _seal(self, copy: int, status: os.stat_result) -> None:
        if self._owner:
            os.fchown(copy, self._owner.uid, self._owner.gid)
        os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_data(source: int, target: int, size: int) -> None:
    """Copy contents and leave holes as holes: a file is no larger on the host's disk than in the sandbox."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                break
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            sent = os.sendfile(target, source, None, min(_CHUNK, end - start))
            if sent == 0:
                break
            start += sent
        offset = end
    os.ftruncate(target, size)
