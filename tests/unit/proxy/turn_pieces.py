"""A client of one trial's turns, as a harness would be one, without HTTP."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from letters import CLOSE, Letters, decode, encode
from proxy_pieces import TERMINAL, ScriptedEngine, Step, make_trial, routing

from engine.core.records import Segment
from engine.proxy.conversation import Conversation
from engine.proxy.segments import segments
from engine.proxy.turn import Call, Limits, Turns
from engine.wire.messages import ChatRequest, Message, Refusal

LIMITS = Limits(
    max_turns=1000, max_context=100_000, max_prompt_tokens=50_000, max_response_tokens=100_000, max_tokens_per_turn=500
)
SYSTEM = Message(role="system", text="rules")
TASK = Message(role="user", text="task")


@dataclass
class Client:
    """Speaks to a trial's turns as a harness would."""

    turns: Turns
    engine: ScriptedEngine
    count: int = 0

    async def ask(self, *messages: Message, tools: tuple[Any, ...] = (TERMINAL,), **fields: Any) -> Message:
        values: dict[str, Any] = {"max_tokens": None, "logprobs": False, "model": "tiny"} | fields
        request = ChatRequest(messages=messages, tools=tools, stream=False, include_usage=False, **values)
        call = Call(id=f"x{self.count}", protocol="p", request="", started_s=0.0, begun=0.0)
        self.count += 1
        return (await self.turns.answer(request, call)).message

    @property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.turns.conversation, self.turns.spill)

    @property
    def texts(self) -> list[str]:
        """Each segment's targets as text."""
        return [decode(segment.token_ids[segment.target]) for segment in self.segments]


def client(
    script: list[Step],
    *,
    moe: bool = True,
    renderer: Letters | None = None,
    volatile: tuple[str, ...] = (),
    side_calls: tuple[str, ...] = (),
    **limits: int,
) -> Client:
    engine = ScriptedEngine(encode=encode, script=script, stop=CLOSE, moe=moe)
    turns = Turns(
        trial=make_trial(Path("/nowhere")),
        model="tiny",
        limits=replace(LIMITS, **limits),
        renderer=renderer or Letters(),
        inference=engine,  # type: ignore[arg-type]
        threads=ThreadPoolExecutor(1),
        conversation=Conversation(volatile),
        hold_back="turn",
        side_calls=side_calls,
    )
    return Client(turns, engine)


def result(reply: Message, text: str) -> Message:
    return Message(role="tool", text=text, tool_call_id=reply.tool_calls[0].id)


def check_routing(segment: Segment) -> None:
    assert segment.routed_experts is not None
    np.testing.assert_array_equal(segment.routed_experts, routing(segment.token_ids.tolist(), 0))


async def refused(asking: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await asking
    return caught.value
