"""Random trees of requests, as clients of all three protocols write them: each answer is echoed from its own body,
rewritten in every way that means nothing, edited, asked for again, lost, and asked for at the same time as others.

The oracle knows of each history which answers it holds unchanged, so it knows the call that a request goes on from.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import CLOSE, Letters, decode, encode
from proxy_pieces import ScriptedEngine
from turn_pieces import Client, client, result

from engine.core.contracts import TokenSink
from engine.core.records import Generation
from engine.proxy.conversation import Turn
from engine.proxy.turn import Call
from engine.tokens import ParsedCall, ParsedTurn
from engine.wire.anthropic import ANTHROPIC_MESSAGES
from engine.wire.messages import Message, ToolCall
from engine.wire.openai_chat import OPENAI_CHAT
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.protocol import WireProtocol

REPLIES = (
    "ok",
    "Done.",
    'ok!{"command": "ls"}',
    'ok!{"command": "ls", "n": 1.0, "deep": {"b": [1, {"c": true}], "a": "\\u00e9 "}}',
    '!{"command": "ls"}!{"command": "pwd"}',
    '!{"command": "ls"}!{"command": "ls"}',
    'bad!{"command": "l',
    "bad![1]",
)
"""Few, so that equal answers stand side by side and in one another's place."""
PROTOCOLS: tuple[WireProtocol, ...] = (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC_MESSAGES)
SCHEMA = {"type": "object", "properties": {"command": {}, "n": {}, "deep": {}, "late": {}}}


class Many(Letters):
    """Several calls in one turn."""

    def parse(self, prompt: Any, sampled: Any, tools: Any) -> ParsedTurn:
        text, *written = decode(sampled).split("!")
        return ParsedTurn(content=text, reasoning="", calls=tuple(map(_call, written)))


def _call(raw: str) -> ParsedCall:
    try:
        well_formed = isinstance(json.loads(raw), dict)
    except ValueError:
        well_formed = False
    return ParsedCall(name="terminal", arguments=raw, well_formed=well_formed)


class Gated(ScriptedEngine):
    """Each call takes what it will sample when it begins, and waits for its gate."""

    async def generate(self, prompt_ids: np.ndarray, sink: TokenSink | None = None, **options: Any) -> Generation:
        gate, reply = self.script.pop(0)  # type: ignore[misc]
        await gate.wait()
        return self._sample(prompt_ids.tolist(), [*encode(reply), CLOSE], options)


# ---------------------------------------------------------------- what a client holds


@dataclass(frozen=True)
class Said:
    """One entry of a history."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Of an answer: id and arguments of each call."""
    results: tuple[tuple[str, str], ...] = ()
    """Of a tool's turn: id and text of each result."""
    own: str = ""
    """The call that sampled it, as long as nothing before it was changed."""


History = tuple[Said, ...]


def edited(history: History, place: int, text: str) -> History:
    """What was sampled after the place stood in another history."""
    changed = replace(history[place], text=text, own="", results=tuple((i, text) for i, _ in history[place].results))
    return (*history[:place], changed, *(replace(said, own="") for said in history[place + 1 :]))


# ---------------------------------------------------------------- how each protocol writes it


def body(protocol: WireProtocol, history: History, noise: random.Random) -> bytes:
    tool = {"name": "terminal", "description": "Run."}
    write = {"openai_chat": _chat, "openai_responses": _responses, "anthropic": _anthropic}[protocol.name]
    written: dict[str, Any] = {"model": "tiny", **write(history, noise, tool)}
    return json.dumps(written).encode()


def _chat(history: History, noise: random.Random, tool: dict[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for said in history:
        if said.role == "tool":
            found = [{"role": "tool", "tool_call_id": i, "content": _parts(t, noise)} for i, t in said.results]
            messages += noise.sample(found, len(found))
        elif said.role == "assistant":
            message: dict[str, Any] = {"role": "assistant", "content": said.text + noise.choice(("", "\n", " "))}
            if not said.text and said.calls:
                message = noise.choice([{"role": "assistant"}, message | {"content": None}, message])
            calls = [
                {"id": i, "type": "function", "function": {"name": "terminal", "arguments": _rewritten(a, noise)}}
                for i, a in said.calls
            ]
            messages.append(message | ({"tool_calls": calls} if calls else noise.choice([{}, {"tool_calls": []}])))
        else:
            messages.append({"role": said.role, "content": _parts(said.text, noise)})
    return {"messages": messages, "tools": [{"type": "function", "function": tool | {"parameters": SCHEMA}}]}


def _parts(text: str, noise: random.Random, kind: str = "text") -> Any:
    return noise.choice(
        [text, [{"type": kind, "text": text}], [{"type": kind, "text": ""}, {"type": kind, "text": text}]]
    )


def _responses(history: History, noise: random.Random, tool: dict[str, Any]) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for said in history:
        if said.role == "tool":
            found = [{"type": "function_call_output", "call_id": i, "output": t} for i, t in said.results]
            items += noise.sample(found, len(found))
        elif said.role == "assistant":
            if said.text or not said.calls:
                content = [{"type": "output_text", "text": said.text}]
                items.append({"type": "message", "role": "assistant", "content": content})
            items += (
                {"type": "function_call", "call_id": i, "name": "terminal", "arguments": _rewritten(a, noise)}
                for i, a in said.calls
            )
        else:
            items.append({"role": said.role, "content": _parts(said.text, noise, "input_text")})
    return {"input": items, "tools": [{"type": "function", **tool, "parameters": SCHEMA}]}


def _anthropic(history: History, noise: random.Random, tool: dict[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for said in history[1:]:
        if said.role == "tool":
            found = [{"type": "tool_result", "tool_use_id": i, "content": _parts(t, noise)} for i, t in said.results]
            messages.append({"role": "user", "content": noise.sample(found, len(found))})
        elif said.role == "assistant":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text or not said.calls else []
            for call_id, written in said.calls:
                given = json.loads(_rewritten(written, noise)) if _is_object(written) else {}
                blocks.append({"type": "tool_use", "id": call_id, "name": "terminal", "input": given})
            messages.append({"role": "assistant", "content": blocks})
        else:
            messages.append({"role": "user", "content": _parts(said.text, noise)})
        last = messages[-1]["content"]
        if isinstance(last, list) and noise.random() < 0.3:
            last[-1]["cache_control"] = {"type": "ephemeral"}
    written = {"messages": messages, "max_tokens": 1000, "tools": [tool | {"input_schema": SCHEMA}]}
    return written | {"system": _parts(history[0].text, noise)}


def _is_object(written: str) -> bool:
    try:
        return isinstance(json.loads(written), dict)
    except ValueError:
        return False


def _rewritten(written: str, noise: random.Random) -> str:
    """Arguments as another serialiser writes them."""
    if not _is_object(written) or noise.random() < 0.3:
        return written
    return json.dumps(_reordered(json.loads(written), noise), ensure_ascii=noise.random() < 0.5)


def _reordered(value: Any, noise: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(value[key], noise) for key in noise.sample(sorted(value), len(value))}
    if isinstance(value, list):
        return [_reordered(one, noise) for one in value]
    return int(value) if isinstance(value, float) else value


# ---------------------------------------------------------------- the walk


@dataclass
class Trial:
    client: Client
    noise: random.Random
    protocols: Sequence[WireProtocol]
    histories: list[History] = field(default_factory=list)
    """Of each answered call: its request and its answer."""
    asked: list[History] = field(default_factory=list)

    async def ask(self, history: History, reply: str, gate: asyncio.Event | None = None) -> None:
        protocol = self.noise.choice(self.protocols)
        if len(self.protocols) > 1 and reply.startswith("bad"):
            reply = "ok"  # what protocols make of such calls differs, and no harness speaks two of them
        request = protocol.parse(body(protocol, history, self.noise))
        call = Call(id=f"x{self.client.count}", protocol=protocol.name, request="", started_s=0.0, begun=0.0)
        self.client.count += 1
        self.client.engine.script.append((gate or opened(), reply))  # type: ignore[arg-type]
        completion = await self.client.turns.answer(request, call)
        assert call.turn is not None
        self.check_parent(call.turn.parent, history)
        message = completion.message
        calls = tuple((one.id, one.arguments) for one in message.tool_calls)
        self.asked.append(history)
        self.histories.append((*history, Said("assistant", message.text, calls, own=call.id)))

    async def ask_at_once(self, asked: Sequence[tuple[History, str]], leave: bool) -> None:
        """All run before one is answered, in any order; the client of the last may leave."""
        gates = [asyncio.Event() for _ in asked]
        tasks = [asyncio.create_task(self.ask(*one, gate)) for one, gate in zip(asked, gates, strict=True)]
        await asyncio.sleep(0)
        if leave:
            tasks.pop().cancel()
        for number in self.noise.sample(range(len(gates)), len(gates)):
            gates[number].set()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    def check_parent(self, parent: Turn | None, history: History) -> None:
        """All answers that the history holds unchanged, each the very one; of equal texts alone any."""
        path = [] if parent is None else parent.path()
        held = [said for said in history if said.own]
        assert [turn.id for turn in path if turn.reply and turn.reply.tool_calls] == [s.own for s in held if s.calls]
        assert [turn.reply.text.strip() for turn in path if turn.reply] == [said.text.strip() for said in held]

    def next(self, history: History, text: str) -> History:
        calls = history[-1].calls
        if calls:
            return (*history, Said("tool", results=tuple((i, f"{text}{n}") for n, (i, _) in enumerate(calls))))
        return (*history, Said("user", text))


def opened() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


START: History = (Said("system", "rules"), Said("user", "task"))
ACTIONS = ("go on", "go on", "again", "edit", "anew", "lost", "at once")


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 40), st.sampled_from(REPLIES), st.booleans()), max_size=14
    ),
    st.integers(0, 10_000),
)
def test_whatever_clients_write_each_request_goes_on_from_the_answer_that_it_holds(
    actions: list[tuple[str, int, str, bool]], seed: int
) -> None:
    asyncio.run(_walk(actions, random.Random(seed)))


async def _walk(actions: Sequence[tuple[str, int, str, bool]], noise: random.Random) -> None:
    c = client([], renderer=Many())
    c.turns.inference = c.engine = Gated(encode=encode, script=[], stop=CLOSE)  # type: ignore[assignment]
    trial = Trial(c, noise, noise.choice([PROTOCOLS, *((one,) for one in PROTOCOLS)]))
    await trial.ask(START, "ok")
    for number, (action, pick, reply, leave) in enumerate(actions):
        at = pick % len(trial.histories)
        history, asked = trial.histories[at], trial.asked[at]
        if action == "again":
            await trial.ask(asked, reply)
        elif action == "edit":
            changed = edited(history, pick % len(history), f"edited {number}")
            await trial.ask(trial.next(changed, f"u{number}"), reply)
        elif action == "anew":
            begun = (START[0], Said("user", f"summary {number}"), *(replace(one, own="") for one in history[2:]))
            await trial.ask(trial.next(begun, f"u{number}"), reply)
        elif action == "lost":
            following = trial.next(history, f"u{number}")
            await trial.ask(following, "lost")
            c.turns.conversation.turns[-1].broken = True
            trial.histories.pop(), trial.asked.pop()
            await trial.ask(following, reply)
        elif action == "at once":
            following = [trial.next(history, f"u{n}") for n in (number, number, number % 3)]
            await trial.ask_at_once([(one, reply) for one in (asked, *following)], leave)
        else:
            await trial.ask(trial.next(history, f"u{number % 3}"), reply)
    check(c)


def check(c: Client) -> None:
    """Every answer that nothing replaced is trained once, behind the very prompt that the engine was given."""
    conversation = c.turns.conversation
    policy = {turn.id: turn for turn in conversation.turns if turn.generation is not None and not turn.discarded}
    trained: Counter[str] = Counter()
    for segment in c.segments:
        at = 0
        for name in segment.exchanges:
            turn = policy[name]
            prompt = turn.prompt()
            assert turn.generation is not None
            np.testing.assert_array_equal(segment.token_ids[: len(prompt)], prompt)
            assert not segment.target[at : len(prompt)].any(), "what was not sampled is no target"
            at = len(prompt) + len(turn.generation.token_ids)
            np.testing.assert_array_equal(segment.token_ids[len(prompt) : at], turn.generation.token_ids)
            targets = segment.target[len(prompt) : at]
            assert targets.all() or not targets.any()
            trained[name] += bool(targets.all())
        assert at == len(segment.token_ids)
    assert trained == Counter(dict.fromkeys(policy, 1))


# ---------------------------------------------------------------- single cases that it found

SYSTEM, TASK, MORE = (Message(role=r, text=t) for r, t in (("system", "rules"), ("user", "task"), ("user", "more")))
LIST = 'ok!{"command": "ls"}'


def parents(c: Client) -> list[str | None]:
    return [None if turn.parent is None else turn.parent.id for turn in c.turns.conversation.turns]


async def test_of_equal_answers_in_one_place_each_is_known_by_the_ids_of_its_calls() -> None:
    """Two sub-agents with one task; the connection of the first is reset after it has read its answer."""
    c = client([LIST, LIST, "one", "two"])
    first, second = await c.ask(SYSTEM, TASK), await c.ask(SYSTEM, TASK)
    c.turns.conversation.turns[0].broken = True
    for reply in (first, second):
        await c.ask(SYSTEM, TASK, reply, result(reply, "same"))
    assert parents(c) == [None, None, "x0", "x1"]
    assert c.texts == [f"{LIST}one", f"{LIST}two"], "the first was delivered: its client went on from it"


async def test_of_equal_texts_in_one_place_the_one_with_the_rest_of_the_history_goes_on() -> None:
    c = client(["ok", "later", "ok", "done"])
    first = await c.ask(SYSTEM, TASK)
    later = await c.ask(SYSTEM, TASK, first, MORE)
    await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, first, MORE, later, MORE)
    assert parents(c) == [None, "x0", None, "x1"]


async def test_the_answer_of_another_turn_is_no_answer_to_a_broken_one() -> None:
    """An edited answer before it is not taken for a fragment of the broken one."""
    c = client(["lost", LIST, LIST, "done"])
    await c.ask(SYSTEM, TASK)
    c.turns.conversation.turns[0].broken = True
    first = await c.ask(SYSTEM, TASK)
    second = await c.ask(SYSTEM, TASK, first, result(first, "r"))
    edited_first = replace(first, text="edited")
    await c.ask(SYSTEM, TASK, edited_first, result(first, "r"), second, result(second, "r"))
    assert parents(c) == [None, None, "x1", None]


@pytest.mark.parametrize(
    ("written", "again"),
    [
        ('{"a": {"b": 1, "c": [2.0]}}', '{"a":{"c":[2],"b":1.0}}'),
        ('{"a": "x ", "b": null, "c": ""}', '{"a": "x"}'),
    ],
)
async def test_arguments_in_the_clients_own_context_may_be_serialised_anew(written: str, again: str) -> None:
    """A compaction that keeps the last call; later requests write it in another way."""
    c = client(["ok", "done"])
    kept = [
        Message(role="assistant", text="", tool_calls=(ToolCall(id="z", name="terminal", arguments=arguments),))
        for arguments in (written, again)
    ]
    reply = await c.ask(SYSTEM, TASK, kept[0], result(kept[0], "r"))
    await c.ask(SYSTEM, TASK, kept[1], result(kept[1], "r"), reply, MORE)
    assert parents(c) == [None, "x0"]
