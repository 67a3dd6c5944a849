"""Sampling and updates never overlap; the probe passes on agreement alone."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.errors import AlignmentError, WeightSyncError
from engine.core.specs import ModelInfo
from engine.inference.gate import Gate
from engine.inference.probe import WeightProbe

Ids = NDArray[np.int32]


async def test_an_update_waits_for_sampling_and_holds_back_what_comes_later() -> None:
    gate, events, release = Gate(), list[str](), asyncio.Event()

    async def sample(name: str, hold: bool) -> None:
        async with gate.sampling():
            events.append(f"{name} in")
            if hold:
                await release.wait()
            events.append(f"{name} out")

    async def update() -> None:
        async with gate.exclusive():
            events.append("update")

    async with asyncio.TaskGroup() as group:
        for task in (sample("a", True), sample("b", True), update(), sample("late", False)):
            group.create_task(task)
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert events == ["a in", "b in"]
        release.set()
    assert events == ["a in", "b in", "a out", "b out", "update", "late in", "late out"]


async def test_cancelled_sampling_and_cancelled_updates_free_the_gate() -> None:
    gate = Gate()

    async def forever() -> None:
        async with gate.sampling():
            await asyncio.Event().wait()

    async def update() -> None:
        async with gate.exclusive():
            pass

    sampling = asyncio.create_task(forever())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(update())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with gate.sampling():
        pass
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    await update()


async def test_two_updates_run_one_after_the_other() -> None:
    gate, inside = Gate(), 0

    async def update() -> None:
        nonlocal inside
        async with gate.exclusive():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(update() for _ in range(4)))


def made(tmp_path: Path) -> tuple[WeightProbe, ModelInfo]:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    model = ModelInfo(
        name="m",
        path=tmp_path,
        renderer="qwen3",
        max_context=64,
        num_layers=1,
        top_k=1,
        dtype="float32",
    )
    return WeightProbe(sequences=3, length=16, seed=1, max_abs_dlogp=1e-3), model


def truth(ids: Ids) -> NDArray[np.float32]:
    return -(ids[1:] / 10).astype(np.float32)


async def test_agreement_gives_figures_and_the_same_tokens_each_time(tmp_path: Path) -> None:
    probe, model = made(tmp_path)
    seen: list[Ids] = []

    async def engine(ids: Ids) -> NDArray[np.float32]:
        seen.append(ids)
        return truth(ids) + np.float32(5e-4)

    for _ in range(2):
        figures = await probe.check(model, engine, truth)
    assert figures["probe/tokens"] == 45 and figures["probe/retried"] == 0
    assert figures["probe/max_abs_dlogp"] == pytest.approx(5e-4, rel=1e-2)
    assert len(seen) == 6 and all(np.array_equal(a, b) for a, b in zip(seen[:3], seen[3:], strict=True))


@pytest.mark.parametrize("gap", [0.01, float("nan"), float("inf")])
async def test_one_token_off_in_every_sequence_stops_the_run(tmp_path: Path, gap: float) -> None:
    probe, model = made(tmp_path)

    async def engine(ids: Ids) -> NDArray[np.float32]:
        scores = truth(ids)
        scores[7] += gap
        return scores

    with pytest.raises(WeightSyncError, match=r"max \|Δ log p\| .*max_abs_dlogp=0\.001"):
        await probe.check(model, engine, truth)


async def test_one_sequence_off_is_tried_with_other_tokens_before_it_counts(tmp_path: Path) -> None:
    probe, model = made(tmp_path)
    unlucky = probe.tokens(model)[1]

    async def engine(ids: Ids) -> NDArray[np.float32]:
        return truth(ids) + np.float32(0.02 if np.array_equal(ids, unlucky) else 0)

    assert (await probe.check(model, engine, truth))["probe/retried"] == 1


async def test_scores_of_another_length_are_refused(tmp_path: Path) -> None:
    probe, model = made(tmp_path)

    async def engine(ids: Ids) -> NDArray[np.float32]:
        return truth(ids)[:-1]

    with pytest.raises(AlignmentError, match=r"\(14,\) from the engine and \(15,\)"):
        await probe.check(model, engine, truth)
