"""One trial's calls without HTTP: limits, failures of the engine, and what does not fit is refused."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from proxy_pieces import engine_failure
from turn_pieces import SYSTEM, TASK, client, refused

from engine.core.errors import AlignmentError
from engine.core.records import Generation, Termination
from engine.proxy.turn import ContextOverflow
from engine.wire.messages import Message


async def test_turn_limit() -> None:
    c = client(["one", "two", "three"], max_turns=2)
    await c.ask(SYSTEM, TASK)
    c.turns.conversation.turns[0].broken = True
    two = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, two, TASK)
    assert c.turns.termination is None, "a lost turn and its retry are one turn"
    problem = await refused(c.ask(SYSTEM, TASK, TASK))
    assert (problem.status, problem.code) == (400, "max_turns_reached")
    assert c.turns.termination is Termination.MAX_TURNS
    await refused(c.ask(SYSTEM, TASK, TASK))


async def test_concurrent_calls_cannot_pass_the_turn_limit() -> None:
    gate = asyncio.Event()
    c = client([gate, "one", "two"], max_turns=1)
    running = asyncio.create_task(c.ask(SYSTEM, TASK))
    await asyncio.sleep(0)
    await refused(c.ask(SYSTEM, TASK, TASK))
    gate.set()
    await running


async def test_concurrent_side_calls_cannot_pass_their_limit() -> None:
    gate = asyncio.Event()
    title = Message(role="system", text="a title")
    c = client([gate, "one", "two"], max_turns=1, side_calls=("title",))
    running = asyncio.create_task(c.ask(title, TASK))
    await asyncio.sleep(0)
    problem = await refused(c.ask(title, replace(TASK, text="another")))
    assert problem.code == "max_turns_reached"
    gate.set()
    await running
    assert c.turns.termination is None


async def test_a_call_that_came_to_nothing_is_no_turn_even_if_another_was_refused_meanwhile() -> None:
    c = client([asyncio.Event(), "one"], max_turns=1)
    running = asyncio.create_task(c.ask(SYSTEM, TASK))
    await asyncio.sleep(0)
    await refused(c.ask(SYSTEM, TASK, TASK))
    running.cancel()
    await asyncio.wait({running})
    assert c.turns.termination is Termination.MAX_TURNS, "its client was told so"
    assert (await c.ask(SYSTEM, TASK)).text == "one"
    assert c.turns.termination is None
    await refused(c.ask(SYSTEM, TASK))
    assert c.turns.termination is Termination.MAX_TURNS


async def test_context_limit_may_be_followed_by_a_compaction() -> None:
    c = client(["one", "two"], max_context=40, max_prompt_tokens=30)
    one = await c.ask(SYSTEM, TASK)
    assert c.engine.calls[0].max_tokens == 40 - len(c.engine.calls[0].prompt)
    with pytest.raises(ContextOverflow) as caught:
        await c.ask(SYSTEM, TASK, one, replace(TASK, text="x" * 30))
    assert caught.value.limit == 40 <= caught.value.asked
    assert c.turns.termination is Termination.CONTEXT_OVERFLOW
    await c.ask(SYSTEM, replace(TASK, text="short"))
    assert c.turns.termination is None


async def test_first_prompt_limit() -> None:
    c = client(["one"], max_prompt_tokens=10)
    with pytest.raises(ContextOverflow) as caught:
        await c.ask(SYSTEM, replace(TASK, text="x" * 30))
    assert caught.value.limit == 10
    assert c.turns.termination is Termination.CONTEXT_OVERFLOW


async def test_token_budget_counts_what_the_harness_appends() -> None:
    c = client(["one", "two", "three"], max_response_tokens=30)
    one = await c.ask(SYSTEM, TASK)
    long = replace(TASK, text="x" * 15)
    await c.ask(SYSTEM, TASK, one, long)
    assert c.engine.calls[1].max_tokens == 30 - len(c.engine.sampled[0]) - len("x" * 15) - 3
    problem = await refused(c.ask(SYSTEM, TASK, one, long, Message(role="assistant", text="two"), long))
    assert problem.code == "token_budget_exceeded"
    assert c.turns.termination is Termination.TOKEN_BUDGET
    await refused(c.ask(SYSTEM, TASK))
    assert c.turns.termination is Termination.TOKEN_BUDGET


async def test_an_engine_failure_is_forgiven_once_its_retry_succeeds() -> None:
    c = client([engine_failure(), "other", engine_failure(), "one"])
    problem = await refused(c.ask(SYSTEM, TASK))
    assert problem.status == 500 and "worker died" in problem.message
    await c.ask(SYSTEM, TASK, TASK)
    assert c.turns.termination is Termination.ENGINE_ERROR, "another branch's success mends nothing"
    await refused(c.ask(SYSTEM, TASK))
    await c.ask(SYSTEM, TASK)
    assert c.turns.termination is None
    assert c.texts == ["other", "one"]


async def test_an_aborted_generation_is_retryable_and_never_trained() -> None:
    c = client([lambda generation: replace(generation, finish_reason="abort"), "half", "whole"])
    assert (await refused(c.ask(SYSTEM, TASK))).status == 503
    assert c.turns.termination is Termination.ENGINE_ERROR
    await c.ask(SYSTEM, TASK)
    assert c.texts == ["whole"] and c.turns.termination is None


async def test_another_model_does_not_exist() -> None:
    problem = await refused(client([]).ask(TASK, model="gpt"))
    assert (problem.status, problem.code) == (404, "model_not_found")


# ---------------------------------------------------------------- alignment


def cut_routing(generation: Generation) -> Generation:
    assert generation.routed_experts is not None
    return replace(generation, routed_experts=generation.routed_experts[1:])


def whole_routing(generation: Generation) -> Generation:
    """As some engines do: the start is ignored and the whole stream's routing sent."""
    assert generation.routed_experts is not None
    pad = np.zeros((generation.routed_start, *generation.routed_experts.shape[1:]), dtype=np.uint8)
    return replace(generation, routed_experts=np.concatenate([pad, generation.routed_experts]), routed_start=0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (cut_routing, r"exchange x1: routed experts of shape \((\d+), 2, 3\).*; (\d+) rows are needed"),
        (whole_routing, r"exchange x1: routed experts start at position 0, asked for \d+"),
        (lambda g: replace(g, routed_experts=None), "exchanges x1 have no routed experts, 1 others on the path do"),
        (
            lambda g: replace(g, routed_experts=g.routed_experts.astype(np.uint16)),
            "differ in layers, top-k or type",
        ),
        (lambda g: replace(g, logprobs=g.logprobs[1:]), r"exchange x1: 3 log-probabilities for 4 sampled tokens"),
        (lambda g: replace(g, policy_versions=g.policy_versions[1:]), r"3 policy versions for 4 sampled tokens"),
    ],
)
async def test_what_does_not_fit_is_refused_with_both_lengths(change: Any, problem: str) -> None:
    c = client(["one", change, "two"])
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, TASK)
    with pytest.raises(AlignmentError, match=problem):
        _ = c.segments


async def test_a_dense_model_has_no_routing() -> None:
    c = client(["one", "two"], moe=False)
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, TASK)
    assert c.segments[0].routed_experts is None
