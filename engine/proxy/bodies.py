"""The request bodies of one trial, each byte of them held once.

A harness sends its whole history with every request: a body is, but for what is new in the middle, the beginning and
the end of one before it. Invariant: a kept body reads back to the byte; what is held is what the bodies add to each
other, not their sum.
"""

from collections import deque
from dataclasses import dataclass

COMPARED = 4
"""Bodies before it that a new one is compared with: sub-agents take turns."""

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Body:
    """One kept body."""

    _held: bytearray
    _spans: tuple[Span, ...]

    def __bytes__(self) -> bytes:
        return b"".join(bytes(self._held[start:end]) for start, end in self._spans)

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self._spans)

    def text(self) -> str:
        return bytes(self).decode("utf-8", "replace")


class Bodies:
    """Keeps the bodies of one trial."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._recent: deque[Body] = deque(maxlen=COMPARED)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._held)

    def keep(self, body: bytes) -> Body:
        best: list[Span] = []
        shared = 0
        model: Body | None = None
        for before in reversed(self._recent):
            spans, size = self._beginning(before, body, shared)
            if size > shared:
                best, shared, model = spans, size, before
        end: list[Span] = []
        size = 0
        if model is not None:
            end, size = self._end(model, body[shared:], shared)
        new = body[shared : len(body) - size]
        if new:
            start = len(self._held)
            self._held += new
            best.append((start, start + len(new)))
        kept = Body(self._held, _joined(best + end))
        if model is not None and 2 * (shared + size) > model.size:
            self._recent.remove(model)  # the new one goes on from it; others are branches of their own
        self._recent.append(kept)
        return kept

    def _beginning(self, before: Body, body: bytes, least: int) -> tuple[list[Span], int]:
        """Spans of the common beginning, and its length; nothing where it is no longer than `least`."""
        spans: list[Span] = []
        at = 0
        for start, end in before._spans:
            chunk = bytes(self._held[start:end])
            if body.startswith(chunk, at):
                spans.append((start, end))
                at += len(chunk)
                continue
            same = _common(chunk, body[at : at + len(chunk)])
            if same:
                spans.append((start, start + same))
            at += same
            break
        return (spans, at) if at > least else ([], 0)

    def _end(self, before: Body, rest: bytes, shared: int) -> tuple[list[Span], int]:
        """Spans of the common end beyond the common beginning."""
        room = min(before.size - shared, len(rest))
        spans: list[Span] = []
        size = 0
        for start, end in reversed(before._spans):
            length = min(end - start, room - size)
            if length <= 0:
                break
            chunk = bytes(self._held[end - length : end])
            piece = rest[len(rest) - size - length : len(rest) - size]
            same = length if chunk == piece else _common(chunk[::-1], piece[::-1])
            if same:
                spans.append((end - same, end))
            size += same
            if same < end - start:
                break
        return spans[::-1], size


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Neighbours in one: an append-only conversation stays a handful of spans."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _common(one: bytes, other: bytes) -> int:
    """Length of the common beginning, by halving: comparing memory is far cheaper than looking at bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
