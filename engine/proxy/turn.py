"""One LLM call: find its place, render what is new, admit it, sample, parse.

Sampling is the trial's own; what the client wished stands in the recorded request. A call that a limit forbids is
refused with the protocol's error that clients do not retry, and the trial's termination is noted. A broken engine is a
5xx, which clients do retry; only if no retry succeeds does it end the trial.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.core.contracts import HoldBack, Inference, TokenSink
from engine.core.errors import InferenceError
from engine.core.records import Generation, Termination, Trial
from engine.proxy.bodies import Body
from engine.proxy.conversation import Conversation, Place, Spot, Turn
from engine.proxy.live import Live, Teller
from engine.proxy.meaning import can_echo, is_side_call
from engine.proxy.segments import routed_start
from engine.proxy.spill import Spill
from engine.tokens import CannotRender, ParsedTurn, Renderer
from engine.wire.messages import ChatRequest, Completion, FinishReason, Message, Refusal, TokenLogprob, ToolCall, Usage
from engine.wire.protocol import Opening

Result = TypeVar("Result")

INLINE_CHARACTERS = 4096
"""Texts up to this size are rendered on the event loop; larger ones in a thread, where encoding lets others run."""


class ContextOverflow(Exception):
    """A prompt that does not fit; each protocol has its own word for it."""

    def __init__(self, limit: int, asked: int) -> None:
        super().__init__(f"a prompt of {asked} tokens, {limit} allowed")
        self.limit, self.asked = limit, asked


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one trial may use; tokens unless said otherwise."""

    max_turns: int
    """Calls."""
    max_context: int
    """Prompt and response of one call."""
    max_prompt_tokens: int
    """The trial's first prompt."""
    max_response_tokens: int
    """All that follows first prompts: sampled tokens and what the harness appends, over the whole trial."""
    max_tokens_per_turn: int


@dataclass(kw_only=True)
class Call:
    """What is noted of one request; becomes one Exchange, whatever becomes of it."""

    id: str
    protocol: str
    request: str | bytes | Body
    """As it came; once it is answered, as `engine.proxy.bodies` keeps it."""
    started_s: float
    begun: float
    """Monotonic seconds at arrival."""
    response: str = ""
    error: str = ""
    queued_s: float = 0.0
    generate_s: float = 0.0
    turn: Turn | None = None
    sampled: Generation | None = None
    """What the engine returned, but for the routed experts; also when nothing came of it."""


@dataclass(kw_only=True)
class Turns:
    """The calls of one trial."""

    trial: Trial
    model: str
    limits: Limits
    renderer: Renderer
    inference: Inference
    threads: Executor
    hold_back: HoldBack
    side_calls: Sequence[str]
    conversation: Conversation = field(default_factory=Conversation)
    spill: Spill = field(default_factory=Spill)
    _running: int = 0
    """Steps of the task that are being answered."""
    _side_running: int = 0
    """Side calls that are."""
    _engine_calls: int = 0
    _task_calls: int = 0
    """Of them, those that were steps of the task."""
    _response_tokens: int = 0
    _ended: Termination | None = None
    """A limit that the last call met, or that no later one can undo."""
    _overflow: bool = False
    _failed: set[Place] = field(default_factory=set)
    """Where the engine failed and no retry has succeeded yet."""

    @property
    def termination(self) -> Termination | None:
        """Why the proxy ended the trial, if it did; an engine that failed excludes whatever else happened."""
        if self._failed:
            return Termination.ENGINE_ERROR
        if self._ended is not None:
            return self._ended
        return Termination.CONTEXT_OVERFLOW if self._overflow else None

    async def answer(self, request: ChatRequest, call: Call, live: Live | None = None) -> Completion:
        """Answer one request; `live` is told of the answer while it is sampled, as far as nothing is held back.

        Raises Refusal, ContextOverflow."""
        self._check_model(request)
        spot = self.conversation.find(request)
        side = is_side_call(request.messages, self.side_calls)
        self._admit(side)
        self._running += not side
        self._side_running += side
        try:
            turn = await self._open(spot, request, call, side)
            teller = None if live is None else self._teller(live, turn, request, call)
            generation = await self._sample(turn, request, call, None if teller is None else teller.tokens)
            parsed = await self._run_threaded(
                len(generation.token_ids), self.renderer.parse, turn.new_ids, generation.token_ids, request.tools
            )
            self._settle(turn, generation, parsed if teller is None else teller.finish(parsed), request)
        finally:
            self._running -= not side
            self._side_running -= side
        return self._completion(turn, generation, request, int(call.started_s))

    async def count(self, request: ChatRequest) -> int:
        """Tokens of the prompt that this request would have; samples nothing. Raises Refusal."""
        self._check_model(request)
        parent, ids = await self._prompt(self.conversation.find(request), request)
        return len(ids) + (0 if parent is None else parent.length)

    def _check_model(self, request: ChatRequest) -> None:
        if request.model != self.model:
            message = f"The model `{request.model}` does not exist or you do not have access to it."
            raise Refusal(message, status=404, param="model", code="model_not_found")

    # ------------------------------------------------------------ admission

    def _admit(self, side: bool) -> None:
        if side:
            if sum(1 for _ in self.conversation.side_turns()) + self._side_running >= self.limits.max_turns:
                raise Refusal(f"This trial may make {self.limits.max_turns} side calls.", code="max_turns_reached")
            return
        if self._turns_made() >= self.limits.max_turns:
            self._ended = self._ended or Termination.MAX_TURNS
        elif self._ended is Termination.MAX_TURNS:  # a call that was running came to nothing, or its answer was lost
            self._ended = None
        if self._ended is None and self._response_tokens >= self.limits.max_response_tokens:
            self._ended = Termination.TOKEN_BUDGET
        if self._ended is Termination.MAX_TURNS:
            raise Refusal(
                f"This trial may make {self.limits.max_turns} model calls and has made them all.",
                code="max_turns_reached",
            )
        if self._ended is Termination.TOKEN_BUDGET:
            self._refuse_budget()

    def _turns_made(self) -> int:
        """Steps of the task, answered or being answered; at most all calls, which is all that matters as long as
        those are few."""
        most = len(self.conversation.turns) + self._running
        if most < self.limits.max_turns:
            return most
        return sum(not turn.lost for turn in self.conversation.policy_turns()) + self._running

    def _refuse_budget(self) -> None:
        self._ended = Termination.TOKEN_BUDGET
        raise Refusal(
            f"This trial may use {self.limits.max_response_tokens} response tokens (tool outputs count) and has used "
            f"{self._response_tokens}.",
            code="token_budget_exceeded",
        )

    def _room(self, turn: Turn, request: ChatRequest) -> int:
        """How many tokens may be sampled; refuses when there is none."""
        limits = self.limits
        asked = turn.prompt_length
        first = self._task_calls == 0 and not turn.side
        for limit, fits in (
            (limits.max_prompt_tokens, not first or asked <= limits.max_prompt_tokens),
            (limits.max_context, asked < limits.max_context),
        ):
            if not fits:
                self._overflow = self._overflow or not turn.side
                raise ContextOverflow(limit, asked)
        room = min(limits.max_tokens_per_turn, limits.max_context - asked)
        if not turn.side:
            appended = 0 if turn.parent is None else len(turn.new_ids)
            budget = limits.max_response_tokens - self._response_tokens - appended
            if budget < 1:
                self._refuse_budget()
            room = min(room, budget)
        return room if request.max_tokens is None else min(room, request.max_tokens)

    # ------------------------------------------------------------ prompt

    async def _open(self, spot: Spot, request: ChatRequest, call: Call, side: bool) -> Turn:
        self._check_size(spot, side)
        parent, ids = await self._prompt(spot, request)
        turn = Turn(id=call.id, place=spot.place, parent=parent, new_ids=ids, side=side)
        self.conversation.add(turn)
        call.turn = turn
        return turn

    def _check_size(self, spot: Spot, side: bool) -> None:
        """A text that cannot fit whatever its tokens are is refused unrendered: it could take minutes."""
        new = spot.all if spot.parent is None else spot.new
        least = sum(len(message.text.strip()) for message in new) // self.renderer.longest_token
        if least >= self.limits.max_context:
            self._overflow = self._overflow or not side
            raise ContextOverflow(self.limits.max_context, least)

    async def _prompt(self, spot: Spot, request: ChatRequest) -> tuple[Turn | None, NDArray[np.int32]]:
        """The turn whose stream goes on, and the ids that go after it; a stream that cannot go on opens a root."""
        parent = spot.parent
        if parent is not None and parent.generation is not None:
            new = [message.to_chat() for message in spot.new]
            size = sum(len(message.text) for message in spot.new)
            sampled = parent.generation.token_ids
            ids = await self._run_threaded(size, self.renderer.extend, parent.new_ids, sampled, new, request.tools)
            if ids is not None:
                return parent, ids
        chat = [message.to_chat() for message in spot.all]
        size = sum(len(message.text) for message in spot.all)
        try:
            return None, await self._run_threaded(size, self.renderer.render, chat, request.tools)
        except CannotRender as problem:
            raise Refusal(f"These messages cannot be rendered for this model: {problem}", param="messages") from None

    async def _run_threaded(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        if size <= INLINE_CHARACTERS:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    # ------------------------------------------------------------ engine

    def _teller(self, live: Live, turn: Turn, request: ChatRequest, call: Call) -> Teller | None:
        """None: this turn is told when it is whole."""
        if self.hold_back == "turn":
            return None
        follower = self.renderer.follow(turn.new_ids, request.tools, calls=self.hold_back == "none")
        if follower is None:
            return None
        usage = Usage(prompt_tokens=turn.prompt_length, completion_tokens=0, cached_tokens=0)
        opening = Opening(id=turn.id, created=int(call.started_s), model=self.model, usage=usage)
        return Teller(live, follower, opening, partial(self._call_id, turn))

    async def _sample(self, turn: Turn, request: ChatRequest, call: Call, sink: TokenSink | None) -> Generation:
        room = self._room(turn, request)
        seed = self.trial.seed + self._engine_calls
        self._engine_calls += 1
        self._task_calls += not turn.side
        begun = time.monotonic()
        call.queued_s = begun - call.begun
        try:
            generation = await self.inference.generate(
                turn.prompt(),
                max_tokens=room,
                temperature=self.trial.temperature,
                top_p=self.trial.top_p,
                seed=seed,
                stop_token_ids=self.renderer.stop_token_ids,
                routed_start=routed_start(turn.parent),
                session=str(self.trial.key),
                sink=sink,
            )
        except InferenceError as failure:
            self._failed.add(turn.place)
            raise Refusal(f"The inference engine failed: {failure}", status=500, kind="server_error") from failure
        finally:
            call.generate_s = time.monotonic() - begun
        if generation.routed_experts is not None:
            turn.routed = await self.spill.keep(generation.routed_experts)
            generation = replace(generation, routed_experts=None)
        call.sampled = generation
        if generation.finish_reason == "abort":
            self._failed.add(turn.place)
            raise Refusal("The inference engine gave the request up.", status=503, kind="server_error")
        return generation

    def _settle(self, turn: Turn, generation: Generation, parsed: ParsedTurn, request: ChatRequest) -> None:
        calls = tuple(
            ToolCall(id=self._call_id(turn, index), name=call.name, arguments=call.arguments)
            for index, call in enumerate(parsed.calls)
        )
        damaged = frozenset(
            call.id
            for call, sampled in zip(calls, parsed.calls, strict=True)
            if not sampled.well_formed or not can_echo(call, request.tools)
        )
        reply = Message(role="assistant", text=parsed.content, reasoning=parsed.reasoning, tool_calls=calls)
        self.conversation.settle(turn, reply, generation, damaged)
        self._failed.discard(turn.place)
        if turn.side:
            return
        appended = 0 if turn.parent is None else len(turn.new_ids)
        self._response_tokens += appended + len(generation.token_ids)
        self._overflow = False

    def _call_id(self, turn: Turn, index: int) -> str:
        """Unique within the trial and the same whenever the trial is played again."""
        text = f"{self.trial.key}/{self.trial.seed}/{turn.id}/{index}"
        return "call_" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def _completion(self, turn: Turn, generation: Generation, request: ChatRequest, created: int) -> Completion:
        reply = turn.reply
        if reply is None:
            raise ValueError(f"turn {turn.id} has no reply")
        finish: FinishReason = "length" if generation.finish_reason == "length" else "stop"
        if reply.tool_calls and finish == "stop":
            finish = "tool_calls"
        logprobs = None
        if request.logprobs:
            texts = self.renderer.token_texts(generation.token_ids)
            pairs = zip(texts, generation.logprobs.tolist(), strict=True)
            logprobs = [TokenLogprob(text=text, logprob=value) for text, value in pairs]
        return Completion(
            id=turn.id,
            created=created,
            model=self.model,
            message=reply,
            finish_reason=finish,
            usage=Usage(
                prompt_tokens=turn.prompt_length,
                completion_tokens=len(generation.token_ids),
                cached_tokens=generation.cached_tokens,
            ),
            logprobs=logprobs,
        )
