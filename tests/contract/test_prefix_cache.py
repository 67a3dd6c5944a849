"""vLLM's prefix cache under whole conversations through the real proxy: what can be cached is, and nothing stale."""

import importlib.util
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from prefix_cache import BAR, HEADER, Held, Started, calls, converse, played, started, updates

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
TURNS = 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Started]:
    async with started(tmp_path_factory.mktemp("vllm"), ["inference.start_timeout_s=1500"], sampled=8) as made:
        yield made


async def check(vllm: Started, held: Held, version: int) -> None:
    """One stream; of each prompt all that an earlier stream filled, of the last 98 %; routing as without a cache."""
    turns = held.turns()
    assert len(turns) == TURNS and len(held.segments) == 1
    for turn in turns[1:]:
        assert (turn.cached, turn.versions) == (turn.possible, (version,))
    assert held.share(turns[-1]) >= BAR
    (segment,) = held.segments
    assert segment.routed_experts is not None and len(segment.routed_experts) == len(segment.token_ids) - 1
    await vllm.engine.update_weights(vllm.model.path / "model.safetensors", version + 1)
    uncached = await vllm.engine.generate(
        segment.token_ids[:-1],
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        seed=0,
        stop_token_ids=[],
        routed_start=0,
        session="afresh",
    )
    assert uncached.cached_tokens == 0
    assert uncached.routed_experts is not None
    # Computed at once and bit by bit, a token that stands between two experts may fall on either side.
    same = (np.sort(uncached.routed_experts, -1) == np.sort(segment.routed_experts, -1)).all(-1)
    assert same.mean() > 0.999, "the cached prefix's routing is that of other tokens"


async def test_a_header_that_changes_costs_nothing_where_a_rule_names_it(vllm: Started) -> None:
    """A user's tails on what the model sampled."""
    await check(vllm, await converse(vllm, TURNS, header=True, volatile=[HEADER]), vllm.engine._version)


async def test_tool_tails(vllm: Started) -> None:
    engine = await played(vllm, calls("terminal", "command", {}, TURNS))
    await check(vllm, await converse(vllm, TURNS, engine=engine), vllm.engine._version)


async def test_without_the_rule_nothing_is_cached(vllm: Started) -> None:
    """What the rule is for; and that these tests can tell."""
    held = await converse(vllm, 3, header=True)
    assert [turn.cached for turn in held.turns()] == [0, 0, 0] and len(held.segments) == 3


async def test_no_block_of_older_weights_is_used(vllm: Started) -> None:
    """Not one at the turn after the update, all that can be at the next one."""
    version = vllm.engine._version + 1
    held = await converse(vllm, 6, between=updates(vllm, 3, version))
    turns = held.turns()
    assert len(held.segments) == 1
    assert [turn.versions for turn in turns] == [(version - 1,)] * 3 + [(version,)] * 3
    assert [turn.cached for turn in turns[1:]] == [turn.possible for turn in turns[1:3]] + [0] + [
        turn.possible for turn in turns[4:]
    ]
    assert turns[3].possible > 0 and turns[5].cached > 0
