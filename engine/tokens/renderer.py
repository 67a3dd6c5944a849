"""What the proxy asks of a model family's message format.

Invariant: `extend` returns only what follows a stream that was sampled; the stream itself is never rendered again.
A format that cannot promise this for given messages returns None, and the caller opens a new stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Chat = Sequence[Mapping[str, Any]]
"""Messages as mappings with OpenAI's field names; tool arguments as objects, or as text where they are none."""
Tools = Sequence[Mapping[str, Any]]
"""OpenAI tool objects."""


class CannotRender(ValueError):
    """The family's format has no way to say these messages; one line that says why."""


@dataclass(frozen=True, kw_only=True)
class ParsedCall:
    """One tool call as sampled; a malformed one keeps its raw arguments."""

    name: str
    arguments: str
    """JSON text of an object when `well_formed`, else what the model wrote."""
    well_formed: bool


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A call as a harness's policy would make it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParsedTurn:
    """A sampled turn as a provider of this model would return it."""

    content: str
    reasoning: str
    calls: tuple[ParsedCall, ...]


@dataclass(frozen=True)
class Piece:
    """More of a turn's reasoning or text."""

    kind: Literal["reasoning", "content"]
    text: str


class Follower(Protocol):
    """Reads one turn while it is being sampled."""

    def feed(self, ids: Sequence[int]) -> Sequence[Piece | ParsedCall]:
        """More sampled ids; what has become certain by them, in order."""
        ...

    def finish(self, turn: ParsedTurn) -> tuple[ParsedTurn, Sequence[Piece | ParsedCall]]:
        """The turn, parsed when it was whole: as it was told, and what of that was not told yet."""
        ...


class Renderer(Protocol):
    """Messages ↔ token ids of one model family."""

    name: str
    stop_token_ids: tuple[int, ...]
    """Tokens that end a turn."""
    longest_token: int
    """Characters that one token can stand for, at most."""

    def render(self, messages: Chat, tools: Tools) -> NDArray[np.int32]:
        """int32 [n]: the whole prompt up to where the assistant begins. Raises CannotRender."""
        ...

    def extend(
        self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], messages: Chat, tools: Tools
    ) -> NDArray[np.int32] | None:
        """int32 [new]: what follows `prompt + sampled` so that the assistant answers `messages`; None: it cannot be.

        Of the prompt, its last part is enough: from the messages that the sampled turn answers."""
        ...

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Tools) -> ParsedTurn:
        """The message in a sampled turn; never raises: what cannot be parsed is content. `prompt` as for `extend`."""
        ...

    def follow(self, prompt: NDArray[np.int32], tools: Tools, *, calls: bool) -> Follower | None:
        """A reader of the turn that answers `prompt` (as for `extend`); `calls`: it tells calls before the turn's end.

        None: in this family's format nothing is certain before the turn is whole."""
        ...

    def misreads(self, shape: Shape) -> str:
        """What of a call of this shape would not come back as it was made, in one line; empty when all does."""
        ...

    def token_texts(self, ids: NDArray[np.int32]) -> list[str]:
        """The text of each token by itself; bytes that are no character by themselves read U+FFFD."""
        ...
