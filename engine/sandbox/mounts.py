"""Mounts and size-limited disks by system calls: a tool for each of them would cost every sandbox five processes.

A disk is a sparse file that holds an ext4 file system without a journal. It is made once for each size and copied: that
takes a fraction of making it. Nothing on it is worth a flush to the machine's own disk: it ends with its sandbox.
Every refusal of the kernel is a SandboxError that names what was to be mounted.
"""

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import threading
from pathlib import Path

from engine.core.errors import SandboxError
from engine.core.paths import cache_dir
from engine.core.temporary import temporary_folder
from engine.sandbox import files
from engine.sandbox.tools import find

_libc = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1 << 10
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_CLONE_FS = 0x200
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LO_FLAGS_AUTOCLEAR = 0x4C82, 0x4C0A, 4
_LOOP_CONFIG = struct.Struct("=II 5Q 4I 160s 2Q 8Q")
"""`struct loop_config`: descriptor and block size, then `struct loop_info64` with its flags, then what is reserved."""
_LOOP_TRIES = 64


def mount_tmpfs(target: Path, size_mb: int) -> None:
    """A file system in memory of limited size."""
    _mount("tmpfs", "tmpfs", str(target), _MS_NOSUID | _MS_NODEV, f"size={size_mb}m,mode=0700")


def mount_disk(file: Path, target: Path, size_mb: int) -> None:
    """A new disk of `size_mb` in `file`, mounted at `target`; its loop device goes with the mount."""
    with _blank_disk(size_mb).open("rb") as blank, file.open("wb") as disk:
        files.copy_data(blank.fileno(), disk.fileno(), size_mb << 20)
    # No barriers: a flush would make the machine's disk wait for data that nobody reads again.
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME
    with file.open("r+b") as backing:
        device, descriptor = _attach(backing.fileno())
        try:
            _mount("ext4", device, str(target), flags, "barrier=0,noinit_itable")
            file.unlink()  # the device holds it, and no one waits until its blocks are free
        finally:
            os.close(descriptor)


def mount_overlay(folder: Path, *, lower: str, upper: str, work: str, target: str) -> None:
    """A copy-on-write tree; all paths are relative to `folder`, and the mount table will show them so."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    failed: list[BaseException] = []

    def enter_and_mount() -> None:
        try:
            # A working directory of this thread's own: the process's is not ours to change.
            if _libc.unshare(_CLONE_FS) < 0:
                raise SandboxError(f"cannot enter {folder}: {os.strerror(ctypes.get_errno())}")
            os.chdir(folder)
            _mount("overlay", "overlay", target, _MS_NOSUID | _MS_NODEV, options)
        except (SandboxError, OSError) as error:
            failed.append(error)

    thread = threading.Thread(target=enter_and_mount, name="sandbox-mount")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def unmount(target: Path, *, lazy: bool) -> bool:
    """Remove one mount; False: it is busy. What is not mounted is fine. Lazily, it goes when its last user does."""
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if _libc.umount2(os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return True
    if number == errno.EBUSY and not lazy:
        return False
    raise SandboxError(f"cannot unmount {target}: {os.strerror(number)}")


def _mount(kind: str, source: str, target: str, flags: int, options: str) -> None:
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if _libc.mount(*arguments) < 0:
        raise SandboxError(f"mounting {kind} at {target} ({options}) failed: {os.strerror(ctypes.get_errno())}")


def _attach(backing: int) -> tuple[str, int]:
    """Give an open file a loop device; returns its name and an open descriptor that keeps it until it is mounted."""
    config = _LOOP_CONFIG.pack(backing, 0, *[0] * 5, 0, 0, 0, _LO_FLAGS_AUTOCLEAR, b"", *[0] * 10)
    try:
        with open("/dev/loop-control", "rb") as control:  # noqa: PTH123
            for _ in range(_LOOP_TRIES):
                device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
                descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(descriptor, _LOOP_CONFIGURE, config)
                except OSError as error:
                    os.close(descriptor)
                    if error.errno != errno.EBUSY:  # another process was quicker
                        raise
                else:
                    return device, descriptor
    except OSError as error:
        raise SandboxError(f"no loop device: {error.filename or ''} {error.strerror}") from error
    raise SandboxError("no loop device: each one that was free was taken by another process at once")


def _blank_disk(size_mb: int) -> Path:
    """The empty disk of a size, from the cache; made when it is not there, whole or not at all."""
    blank = cache_dir() / "disks" / f"ext4-{size_mb}.img"
    if blank.is_file():
        return blank
    mkfs = find("mkfs.ext4")
    if mkfs is None:
        raise SandboxError("mkfs.ext4 is not installed: apt-get install -y --no-install-recommends e2fsprogs")
    with temporary_folder("disk", blank.parent) as folder:
        draft = folder / blank.name
        command = (mkfs, "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode", str(draft))
        with draft.open("wb") as file:
            file.truncate(size_mb << 20)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SandboxError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())}")
        draft.replace(blank)
    return blank
