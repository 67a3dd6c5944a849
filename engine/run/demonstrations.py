"""What a scripted, mostly wrong solver says in a trial, and its conversations as token rows of a new tokeniser.

The solver knows a task's injected bug and the lines that might mend it (`solution/repairs.json`, which no sandbox
sees). It picks the right one with a probability and says so in the harness's own tool calls, which stand in the
harness's configuration (`demonstration`).

Invariant: the same seed gives the same choices. Refuses: a task without known repairs, a conversation that its harness
rewrote.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.contracts import Harness
from engine.core.errors import ConfigError, RunError
from engine.core.records import Demonstration, Exchange, Scored, Task, Trial
from engine.inference.script import Call, Turn
from engine.run.plan import derived_seed
from engine.tokens.renderer import Renderer
from engine.wire.recorded import request_sent

Encode = Callable[[str], NDArray[np.int32]]
"""The text of a whole turn → its tokens, the one that ends a turn included."""


@dataclass(frozen=True, kw_only=True)
class Repairs:
    """One line of one file: as it is, as it should be, and as it might be."""

    path: str
    """Relative to the repository."""
    buggy: str
    right: str
    wrong: tuple[str, ...]


def read_repairs(task: Task) -> Repairs:
    """Lines come without their indentation. Raises ConfigError for a task that has none."""
    file = task.directory / "solution/repairs.json"
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        problem = f"{file.name} is missing: nobody knows which wrong lines a solver could propose"
        raise ConfigError("tasks", task.id, problem, "choose tasks=laptop for a warm start") from error
    return Repairs(
        path=facts["path"],
        buggy=facts["buggy"].strip(),
        right=facts["right"].strip(),
        wrong=tuple(line.strip() for line in facts["wrong"]),
    )


def script(
    trials: Sequence[Trial], harnesses: Mapping[str, Harness], right_share: float, seed: int
) -> dict[str, list[Turn]]:
    """Session name → the turns of its conversation."""
    turns = {}
    for trial in trials:
        repairs = read_repairs(trial.task)
        draw = random.Random(derived_seed(seed, "demonstration", trial.harness, trial.key))  # noqa: S311
        right = draw.random() < right_share or not repairs.wrong
        chosen = repairs.right if right else draw.choice(repairs.wrong)
        values = {
            "workdir": trial.task.workdir,
            "path": repairs.path,
            "buggy": repairs.buggy,
            "repair": chosen,
        }
        turns[str(trial.key)] = [
            Turn(
                text=_filled(turn["text"], values),
                calls=_calls(turn, values),
            )
            for turn in harnesses[trial.harness].demonstration
        ]
    return turns


def _calls(turn: Mapping[str, Any], values: Mapping[str, str]) -> tuple[Call, ...]:
    """A turn without a tool's name is text alone: it ends the harnesses that have no tool for ending."""
    if turn["name"] is None:
        return ()
    return (Call(name=turn["name"], arguments=_filled(turn["arguments"], values)),)


def _filled(template: Any, values: Mapping[str, str]) -> Any:
    """Every `{name}` of `values` put in, in texts at any depth; other braces stay as they are."""
    if isinstance(template, Mapping):
        return {key: _filled(value, values) for key, value in template.items()}
    if isinstance(template, Sequence) and not isinstance(template, str):
        return [_filled(value, values) for value in template]
    if isinstance(template, str):
        for name, value in values.items():
            template = template.replace("{" + name + "}", value)
    return template


def row(scored: Scored, turns: Sequence[Turn], renderer: Renderer, encode: Encode) -> Demonstration:
    """The conversation as the engine would have seen it, had it sampled `turns` with this renderer's tokens.

    Raises RunError when the harness made more calls than were scripted or did not append to its history."""
    exchanges = [exchange for exchange in scored.trajectory.exchanges if exchange.kind == "policy"]
    key = scored.trajectory.trial.key
    if not exchanges or len(exchanges) > len(turns):
        raise RunError(f"demonstration {key}: {len(exchanges)} LLM calls for {len(turns)} scripted turns")
    ids: list[NDArray[np.int32]] = []
    flags: list[NDArray[np.bool_]] = []
    context = said = np.zeros(0, np.int32)
    seen = 0
    for exchange, turn in zip(exchanges, turns, strict=False):
        new, seen = _prompt(exchange, (context, said), seen, renderer, str(key))
        context, said = new, encode(turn.written())
        ids += [context, said]
        flags += [np.zeros(len(context), np.bool_), np.ones(len(said), np.bool_)]
    return Demonstration(token_ids=np.concatenate(ids), sampled=np.concatenate(flags))


def _prompt(
    exchange: Exchange, last: tuple[NDArray[np.int32], NDArray[np.int32]], seen: int, renderer: Renderer, key: str
) -> tuple[NDArray[np.int32], int]:
    """The ids that this call adds, and how many messages the conversation holds with them."""
    request = request_sent(exchange.protocol, exchange.request)
    messages = [message.to_chat() for message in request.messages]
    if exchange.parent is None:
        if seen:
            raise RunError(f"demonstration {key}: the harness rewrote its history at {exchange.id}")
        return renderer.render(messages, request.tools), len(messages)
    new = renderer.extend(*last, messages[seen + 1 :], request.tools)  # one more: the assistant's own
    if new is None:
        raise RunError(f"demonstration {key}: {exchange.id} cannot follow what was said before")
    return new, len(messages)
