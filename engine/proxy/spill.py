"""Routed experts of one trial on disk while it runs: a token of a 40-layer model has 320 bytes of them, and no use for
them before the trial's segments are built.

One append-only file without a name, so that nothing of it is left when the trial is closed, or its process killed.
Invariant: rows read back are the rows that were kept, in number, shape and type; a file that is shorter raises
AlignmentError. Nothing is written for a model that has none.
"""

import asyncio
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import AlignmentError

INLINE_BYTES = 1 << 20
"""Rows up to this size are written on the event loop; a long prompt's in a thread."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Where rows lie."""

    offset: int
    """Bytes."""
    shape: tuple[int, ...]
    """[rows, layers, top_k]."""
    dtype: str

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Spill:
    """The file of one trial, made when the first rows come."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where it lies; None: the system's folder for temporary files."""
        self._folder = folder
        self._file: int | None = None
        """Descriptor."""
        self._closed: Callable[[], object] = lambda: None
        self._end = 0
        self._lock = threading.Lock()
        """Held while the descriptor is used: once closed, its number may be another file's."""

    async def keep(self, rows: NDArray[Any]) -> Rows:
        """Write rows; they may be forgotten afterwards."""
        if self._file is None:
            self._file, name = tempfile.mkstemp(prefix="routed-", dir=self._folder)
            Path(name).unlink()
            self._closed = weakref.finalize(self, os.close, self._file)
        kept = Rows(offset=self._end, shape=rows.shape, dtype=rows.dtype.str)
        self._end += kept.bytes
        if kept.bytes <= INLINE_BYTES:
            self._write(rows, kept.offset)
        else:
            await asyncio.to_thread(self._write, rows, kept.offset)
        return kept

    def _write(self, rows: NDArray[Any], offset: int) -> None:
        left = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        with self._lock:
            while left and self._file is not None:
                written = os.pwrite(self._file, left, offset)
                left, offset = left[written:], offset + written

    def joined(self, blocks: Sequence[Rows]) -> NDArray[Any]:
        """The rows of all blocks, one after the other; they have one type, and one shape but for their number."""
        first = blocks[0]
        whole: NDArray[Any] = np.empty((sum(block.shape[0] for block in blocks), *first.shape[1:]), first.dtype)
        at = 0
        for block in blocks:
            self._read(block, whole[at : at + block.shape[0]])
            at += block.shape[0]
        return whole

    def _read(self, block: Rows, into: NDArray[Any]) -> None:
        target = into.reshape(-1).view(np.uint8).data
        read = 0
        while self._file is not None and read < block.bytes:
            got = os.preadv(self._file, [target[read:]], block.offset + read)
            if not got:
                break
            read += got
        if read != block.bytes:
            raise AlignmentError(f"{read} bytes of routed experts on disk where {block.bytes} were written")

    def close(self) -> None:
        """Remove it, once nothing is written any more: a trial's end leaves threads behind. Idempotent."""
        with self._lock:
            self._file = None
            self._closed()
