"""What sandboxes of one name can leave on a machine, so that a benchmark can say that nothing is left.

Whatever is made for a sandbox carries the sandbox's name (the rooms, and with them mounts, loop devices, control groups
and containers) or belongs to this process (children, descriptors); sandboxes of others on the machine do not count.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from engine.sandbox import podman_service


def descriptors() -> int:
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def left(name: str, open_before: int) -> list[str]:
    """Each thing that is there, in words; empty: nothing. Call it once the runtime has stopped."""
    found = [
        f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line
    ]
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        file = device.read_text().strip()
        if name in file:
            found.append(f"loop device over {file}")
    found += [f"control group {folder}" for folder in _folders("/sys/fs/cgroup") if name in folder]
    found += [f"container {container}" for container in _containers() if name in container]
    found += [f"process {child}" for task in Path("/proc/self/task").iterdir() for child in _children(task)]
    if (more := descriptors() - open_before) > 0:
        found.append(f"{more} descriptors")
    return found


def _folders(top: str) -> Iterator[str]:
    for folder, _, _ in os.walk(top):
        yield folder


def _containers() -> list[str]:
    if shutil.which("podman") is None:
        return []
    command = [*podman_service.command(), "ps", "--all", "--format", "{{.Names}}"]
    done = subprocess.run(command, env=podman_service.environment(), capture_output=True, text=True, check=True)
    return done.stdout.split()


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []
