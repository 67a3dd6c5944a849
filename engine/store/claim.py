"""Who works in a run directory: one process at a time.

The claim is a lock on `lock` that the kernel drops with the process, however it ends; the process id written there is
for people. Whatever only reads the run needs no claim.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from engine.store.layout import Layout


@contextmanager
def claim(layout: Layout) -> Iterator[str]:
    """Hold the directory of `layout`, which exists. Yields "" or, when another process holds it, that one's id."""
    with layout.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read().strip() or "unknown"
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield ""
