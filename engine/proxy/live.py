"""What a client is told of an answer while it is being sampled.

Produces: the sampling task, through `tokens` and `finish`. Consumes: the response that is written, through `take`.
Invariant: what was told is a beginning of the message that the whole answer is; the first thing told is certain, so a
failure before it is still an ordinary error response.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.tokens import Follower, ParsedCall, ParsedTurn, Piece
from engine.wire.protocol import ArgumentsDelta, CallDelta, Delta, Opening, ReasoningDelta, TextDelta


class Live:
    """One answer on its way from the task that samples it to the response that streams it."""

    def __init__(self) -> None:
        self.opening: Opening | None = None
        """Set before the first delta."""
        self._deltas: list[Delta] = []
        self._changed = asyncio.Event()

    def tell(self, deltas: Sequence[Delta]) -> None:
        self._deltas += deltas
        self._changed.set()

    def take(self) -> list[Delta]:
        """All that was told since the last time."""
        taken, self._deltas = self._deltas, []
        return taken

    def wake_when_done(self, task: "asyncio.Task[Any]") -> None:
        """Let a task's end count as a change."""
        task.add_done_callback(lambda _: self._changed.set())

    async def changed(self) -> None:
        """Wait until something was told, or a task has ended, since the last wait."""
        await self._changed.wait()
        self._changed.clear()


class Teller:
    """Turns the tokens of one turn into what its client is told."""

    def __init__(self, live: Live, follower: Follower, opening: Opening, mint: Callable[[int], str]) -> None:
        """`mint` gives the id of each call, by its number in the turn."""
        self._live, self._follower, self._opening, self._mint = live, follower, opening, mint
        self._calls = 0

    def tokens(self, ids: Sequence[int]) -> None:
        """More sampled ids: the engine's sink."""
        self._tell(self._follower.feed(ids))

    def finish(self, turn: ParsedTurn) -> ParsedTurn:
        """Tell the rest of a turn that is whole; the turn, as it was told."""
        told, rest = self._follower.finish(turn)
        self._tell(rest)
        return told

    def _tell(self, pieces: Sequence[Piece | ParsedCall]) -> None:
        if pieces:
            self._live.opening = self._opening
            self._live.tell([delta for piece in pieces for delta in self._deltas(piece)])

    def _deltas(self, piece: Piece | ParsedCall) -> list[Delta]:
        if isinstance(piece, Piece):
            return [TextDelta(piece.text) if piece.kind == "content" else ReasoningDelta(piece.text)]
        self._calls += 1
        return [CallDelta(id=self._mint(self._calls - 1), name=piece.name), ArgumentsDelta(piece.arguments)]
