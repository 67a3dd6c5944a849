"""The conversation tree of one trial: which history a request continues, and what its calls sampled.

A `Place` is a point between two messages; a `Turn` is one call made at a place, and its answer leads to a new place.
A request walks from a root (one per set of tools) along its messages. Invariant: a turn's stream is its parent's
stream, then its own new prompt ids, then what it sampled; nothing that was sampled is ever rendered again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.records import Generation
from engine.proxy.meaning import (
    Clean,
    call_places,
    exact_key,
    in_call_order,
    plain_key,
    same_reply,
    says_nothing,
    without_volatile,
)
from engine.proxy.spill import Rows
from engine.wire.messages import ChatRequest, Message

SEEN = 8
"""Spellings of messages that a place remembers: text that changes with each request must not fill the memory."""


@dataclass(eq=False)
class Place:
    """A point in a conversation."""

    came: Message | None = None
    """The message that led here, as it was first said; None after a turn and at a root."""
    turns: "list[Turn]" = field(default_factory=list)
    """Calls made here, oldest first."""
    _steps: "dict[tuple[Any, ...], Place]" = field(default_factory=dict)
    """By what the message means."""
    _seen: "dict[tuple[Any, ...], Place]" = field(default_factory=dict)
    """By its letters: the short way for what is repeated with each request."""

    def step(self, message: Message, answers: str, clean: Clean) -> "Place":
        """The place after a message that was not sampled here; `answers` names the call of a tool's result."""
        exact = (answers, *exact_key(message))
        place = self._seen.get(exact)
        if place is None:
            place = self._steps.setdefault(plain_key(message, answers, clean), Place(message))
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen[exact] = place
        return place

    def known_step(self, message: Message, answers: str, clean: Clean) -> "Place | None":
        """The place after it, if a request has gone there before."""
        return self._seen.get((answers, *exact_key(message))) or self._steps.get(plain_key(message, answers, clean))

    def answered_by(self, message: Message, clean: Clean) -> "list[Turn]":
        """The calls made here whose answer this message means, newest first."""
        return [turn for turn in reversed(self.turns) if turn.says(message, clean)]

    def own_texts(self) -> Iterator[tuple[str, "Place"]]:
        """What the client put into the assistant's mouth here, and the place after it."""
        for place in self._steps.values():
            own = place.came
            if own is not None and own.role == "assistant" and own.text and not own.tool_calls:
                yield own.text, place


@dataclass(eq=False, kw_only=True)
class Turn:
    """One call of the engine."""

    id: str
    """The exchange's id."""
    place: Place
    parent: "Turn | None"
    new_ids: NDArray[np.int32]
    """int32 [new]; prompt ids beyond the parent's stream."""
    prompt_length: int = field(init=False)
    """Length of the whole prompt."""
    after: Place = field(default_factory=Place)
    generation: Generation | None = None
    """Without its routed experts, which lie on disk."""
    routed: Rows | None = None
    """Where; None for dense models."""
    reply: Message | None = None
    damaged: frozenset[str] = frozenset()
    """Ids of tool calls that no harness can echo as they were."""
    broken: bool = False
    """The connection broke before the client had read the whole response."""
    side: bool = False
    """No step of the task: recorded and never trained."""
    continued: bool = False
    """A later request holds the answer in its history: it was delivered, whatever the connection did."""
    left: bool = False
    """The answer was broken, and the client went on from its place with another: with the part that it had got."""
    _echo: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.prompt_length = (0 if self.parent is None else self.parent.length) + len(self.new_ids)

    @property
    def lost(self) -> bool:
        return self.broken and not self.continued

    @property
    def discarded(self) -> bool:
        """A lost turn in whose place the client asked again and was answered, or which it left."""
        if not self.lost:
            return False
        if self.left:
            return True
        later = self.place.turns[self.place.turns.index(self) + 1 :]
        return any(turn.generation is not None for turn in later)

    @property
    def length(self) -> int:
        """Tokens of the whole stream."""
        sampled = 0 if self.generation is None else len(self.generation.token_ids)
        return self.prompt_length + sampled

    def says(self, message: Message, clean: Clean) -> bool:
        if self.reply is None:
            return False
        key = exact_key(message)
        if key == self._echo:
            return True
        same = same_reply(self.reply, message, self.damaged, clean)
        if same:
            self._echo = key
        return same

    def path(self) -> "list[Turn]":
        """From the root to this turn."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def prompt(self) -> NDArray[np.int32]:
        """int32 [prompt_length]."""
        pieces = [self.new_ids]
        turn = self.parent
        while turn is not None:
            if turn.generation is not None:
                pieces.append(turn.generation.token_ids)
            pieces.append(turn.new_ids)
            turn = turn.parent
        return np.concatenate(pieces[::-1]).astype(np.int32, copy=False)


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a request stands in the tree."""

    place: Place
    parent: Turn | None
    """The last turn whose answer the request's history holds; None: the request opens a root."""
    new: list[Message]
    """The messages after the parent's answer; all of them at a root."""
    all: list[Message]
    """The whole history; what means the same as a message seen before stands as it was first said, so that its tokens,
    if they are rendered again, are those that the engine has cached."""


class Conversation:
    """The tree of one trial; `volatile` are regular expressions of text that its harness does not mean."""

    def __init__(self, volatile: Sequence[str] = ()) -> None:
        self._clean = without_volatile(volatile)
        self._roots: dict[bytes, Place] = {}
        self._minted: dict[str, Turn] = {}
        """Id of each call that was answered → the turn that made it."""
        self.turns: list[Turn] = []

    def find(self, request: ChatRequest) -> Spot:
        """Walk the request's history; turns that it holds are thereby known to be delivered."""
        place = self._roots.setdefault(request.tools_key, Place())
        parent: Turn | None = None
        calls: dict[str, str] = {}
        messages = in_call_order(request.messages)
        said: list[Message] = []
        start = kept = 0
        for number, message in enumerate(messages):
            said.append(message)
            if number < kept:
                continue
            if message.role == "assistant":
                calls = call_places(message)
                answered = self._answered_by(place, message)
                turn = self._gone_on_with(answered, messages, number) or self._joined(place, message)
                if turn is not None:
                    turn.continued = True
                    parent, place, start = turn, turn.after, len(said)
                    continue
                kept = self._fragment_end(place, messages, number)
                if kept > number:
                    continue
                for passed in place.turns:
                    passed.left = passed.left or passed.broken
            if not says_nothing(message, self._clean):
                answers = calls.get(message.tool_call_id, message.tool_call_id)
                place = place.step(message, answers, self._clean)
                said[-1] = place.came or message
        return Spot(place=place, parent=parent, new=messages[start:], all=said)

    def _answered_by(self, place: Place, message: Message) -> list[Turn]:
        """The calls made at a place whose answer a message is, newest first; a message that bears the ids of a turn's
        calls is that turn's answer or none, however many others said the same."""
        owner = next((self._minted[call.id] for call in message.tool_calls if call.id in self._minted), None)
        if owner is None:
            return place.answered_by(message, self._clean)
        return [owner] if owner.place is place and owner.says(message, self._clean) else []

    def _joined(self, place: Place, message: Message) -> Turn | None:
        """The call made after an assistant's text of the client's own, if the client joined text and answer to one."""
        for own, after in place.own_texts():
            rest = replace(message, text=message.text.removeprefix(own))
            says_more = rest.text != message.text and (rest.text.strip() or rest.tool_calls)
            turns = self._answered_by(after, rest) if says_more else []
            if turns:
                return turns[0]
        return None

    def _gone_on_with(self, answered: "Sequence[Turn]", messages: Sequence[Message], number: int) -> Turn | None:
        """Of calls that all gave the answer `messages[number]`, the one behind which most of what follows it is known;
        of several such the newest."""
        if len(answered) < 2:
            return answered[0] if answered else None
        heads = [(turn, turn.after) for turn in answered]
        calls = call_places(messages[number])
        for message in messages[number + 1 :]:
            if message.role == "assistant":
                calls = call_places(message)
            elif says_nothing(message, self._clean):
                continue
            answers = calls.get(message.tool_call_id, message.tool_call_id)
            further = [(turn, place) for turn, here in heads for place in self._beyond(here, message, answers)]
            if not further:
                break
            heads = further
            if all(turn is heads[0][0] for turn, _ in heads):
                break
        return heads[0][0]

    def _beyond(self, place: Place, message: Message, answers: str) -> "list[Place]":
        """The known places to which a message leads."""
        if message.role == "assistant":
            answered = self._answered_by(place, message)
            if answered:
                return [turn.after for turn in answered]
        known = place.known_step(message, answers, self._clean)
        return [] if known is None else [known]

    def _fragment_end(self, place: Place, messages: Sequence[Message], start: int) -> int:
        """Where what a client kept of a broken answer ends: before the answer to its retry; `start` where it is none.

        Such are an empty message, a part of the text, a call that was never run with a result that says so. The retry
        was asked without it, so it stands in no prompt."""
        if any(turn.broken for turn in place.turns):
            for end, later in enumerate(messages[start + 1 :], start + 1):
                if later.role == "assistant" and self._answered_by(place, later):
                    return end
                if later.role not in ("assistant", "tool"):
                    break
        return start

    def add(self, turn: Turn) -> None:
        """Enter a call before its engine runs."""
        turn.place.turns.append(turn)
        self.turns.append(turn)

    def settle(self, turn: Turn, reply: Message, generation: Generation, damaged: frozenset[str]) -> None:
        """Enter what its engine sampled."""
        turn.reply, turn.generation, turn.damaged = reply, generation, damaged
        self._minted.update((call.id, turn) for call in reply.tool_calls)

    def policy_turns(self) -> Iterator[Turn]:
        """Turns whose tokens are trained, oldest first."""
        return (turn for turn in self._answered() if not turn.side)

    def side_turns(self) -> Iterator[Turn]:
        """Turns that are no steps of the task, oldest first."""
        return (turn for turn in self._answered() if turn.side)

    def _answered(self) -> Iterator[Turn]:
        """Turns whose answer nothing has replaced."""
        return (turn for turn in self.turns if turn.generation is not None and not turn.discarded)
