"""The optimiser's side of a step on stand-ins: its order, what is resumed, and that the disk changes nothing."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from samples_cases import scored

from engine.core.errors import NoTrainableToken, RunError, WeightSyncError
from engine.core.records import Batch, Scored, Termination
from engine.run.keeper import EngineKeeper
from engine.run.optimise import Optimiser
from engine.samples.advantages import GroupNormalized
from engine.samples.rewards import AsJudged
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer

STEP = 3
"""The hand-made trajectories were sampled by version 3, one segment by version 2."""


@dataclasses.dataclass
class Bench:
    """Model, trainer, engine and probe at once."""

    log: list[str] = dataclasses.field(default_factory=list)
    batches: list[Batch] = dataclasses.field(default_factory=list)
    told: list[str] = dataclasses.field(default_factory=list)
    gap: float = 0.0
    fault: Exception | None = None

    deaths: int = 0
    """Times that the engine is found dead at a weight update."""
    dead: bool = False

    @property
    def parts(self) -> Any:
        return SimpleNamespace(model=None, engine=EngineKeeper(self, 3, self.told.append), trainer=self)  # type: ignore[arg-type]

    def failure(self) -> str:
        return "it is dead" if self.dead else ""

    async def restart(self) -> None:
        self.log.append("restart")
        self.dead = False

    def step(self, batch: Batch) -> dict[str, Any]:
        self.log.append("step")
        self.batches.append(batch)
        recomputed = [
            np.where(row.target, row.captured_logprobs + self.gap, 0).astype(np.float32) for row in batch.rows
        ]
        return {"loss/total": 0.5, "old_logprobs": recomputed}

    def load(self, directory: Path) -> None:
        self.log.append(f"load {directory.name}")

    def save(self, directory: Path) -> None:
        self.log.append(f"save {directory.name}")
        directory.mkdir(parents=True)
        (directory / "weights").touch()

    def export(self, path: Path) -> None:
        self.log.append("export")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    async def update_weights(self, weights: Path, version: int) -> None:
        assert weights.exists()
        self.log.append(f"update {version}")
        if self.deaths:
            self.deaths, self.dead = self.deaths - 1, True
            raise RunError("no answer")
        if self.fault is not None:
            raise self.fault

    async def check(self, model: Any, engine: Any, trainer: Any) -> dict[str, float]:
        self.log.append("probe")
        return {"probe/max_abs_dlogp": 0.0}

    async def score(self, ids: Any) -> Any: ...


def optimiser(bench: Bench, root: Path, *, probed: bool = True, kept: int | None = None) -> Optimiser:
    built: Any = SimpleNamespace(
        algorithm=SimpleNamespace(rewards=AsJudged(), advantage=GroupNormalized(ddof=1, epsilon=1e-6)),
        inference=SimpleNamespace(probe=bench if probed else None),
        schedule=SimpleNamespace(checkpoints_kept=kept),
    )
    return Optimiser(built, bench.parts, Layout(root=root))


def a_step() -> list[Scored]:
    lost = scored(None, "b", 1, termination=Termination.SANDBOX_LOST)
    return [scored(1.0, "a", 0), scored(0.0, "a", 1), scored(0.0, "b", 0), lost]


async def test_a_step_trains_then_moves_the_weights_then_probes(tmp_path: Path) -> None:
    bench = Bench(gap=1e-6)
    metrics = await optimiser(bench, tmp_path).step(STEP, a_step(), bench.told.append)
    assert bench.log == ["step", "export", "update 4", "probe"]
    assert bench.told == ["moving the weights into the engine", "comparing engine and trainer"]
    assert list((tmp_path / "scratch").iterdir()) == []
    assert metrics["tokens/sampled"] == metrics["tokens/trained"] == 3 * 10
    assert (metrics["trials/kept"], metrics["trials/excluded"]) == (3, 1)
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["groups/zero_variance"] == 0.5
    assert metrics["alignment/tokens"] == 3 * 6
    assert metrics["alignment/stale_tokens"] == 3 * 4
    assert metrics["alignment/max_abs_dlogp"] == pytest.approx(1e-6, rel=0.1)
    assert "old_logprobs" not in metrics


async def test_what_the_trainer_recomputed_is_kept_under_the_names_of_the_trials(tmp_path: Path) -> None:
    step = a_step()
    await optimiser(Bench(gap=0.125), tmp_path).step(STEP, step, print)
    reader = Reader(Layout(root=tmp_path))
    advantages = {}
    for one in step[:3]:
        name = str(one.trajectory.trial.key)
        found = reader.recomputed(STEP, name)
        assert found is not None
        assert [row["segment"] for row in found] == [0, 1, 2]
        for row, segment in zip(found, one.trajectory.segments, strict=True):
            assert row["logprobs"] == (segment.logprobs[segment.target] + np.float32(0.125)).tolist()
            assert row["policy_version"] == STEP
            advantages[name] = row["advantage"]
    assert advantages["e0-a-s0-a0"] == -advantages["e0-a-s1-a0"] > 0
    assert advantages["e0-b-s0-a0"] == 0
    assert reader.recomputed(STEP, "e0-b-s1-a0") is None  # excluded: the trainer saw nothing of it


async def test_a_disk_that_takes_no_more_keeps_nothing_half_and_stops_before_the_weights_move(tmp_path: Path) -> None:
    bench = Bench()
    (tmp_path / "recomputed").touch()
    with pytest.raises(RunError, match="cannot be written"):
        await optimiser(bench, tmp_path).step(STEP, a_step(), bench.told.append)
    assert bench.log == ["step"]


async def test_trials_read_back_from_the_disk_train_the_same(tmp_path: Path) -> None:
    """A restart makes its batch from files; routing is another on each token, so that a shifted row would show."""
    layout = Layout(root=tmp_path)
    rng = np.random.default_rng(0)
    fresh = [routed(one, rng) for one in a_step()]
    for one in fresh:
        Writer(layout).trial(STEP, one)
    back = [Reader(layout).trial(STEP, one.trajectory.trial) for one in fresh]
    bench = Bench()
    made = optimiser(bench, tmp_path)
    read = [one for one in back if one is not None]
    metrics = [await made.step(STEP, some, bench.told.append) for some in (fresh, read)]
    assert_same(*bench.batches)
    for one in metrics:
        del one["time/train_s"], one["time/sync_s"]
    assert metrics[0] == metrics[1]


def routed(one: Scored, rng: np.random.Generator) -> Scored:
    segments = tuple(
        dataclasses.replace(segment, routed_experts=rng.integers(0, 8, (len(segment.token_ids) - 1, 2, 2), np.uint8))
        for segment in one.trajectory.segments
    )
    return dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, segments=segments))


def assert_same(left: Batch, right: Batch) -> None:
    assert len(left.rows) == len(right.rows) == 9
    assert dataclasses.replace(left, rows=()).__dict__ == dataclasses.replace(right, rows=()).__dict__
    for a, b in zip(left.rows, right.rows, strict=True):
        for field in dataclasses.fields(a):
            mine, theirs = getattr(a, field.name), getattr(b, field.name)
            np.testing.assert_array_equal(mine, theirs)
            assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None)


async def test_a_run_goes_on_at_its_newest_checkpoint_with_the_engine_brought_up_to_it(tmp_path: Path) -> None:
    bench = Bench()
    assert await optimiser(bench, tmp_path).resume([1, 2], bench.told.append) == 2
    assert bench.log == ["load version=000002", "export", "update 2", "probe"]
    bench.log.clear()
    assert await optimiser(bench, tmp_path).resume([], bench.told.append) == 0
    assert bench.log == ["probe"]


async def test_an_engine_that_dies_while_it_gets_the_weights_is_started_again_and_gets_them(tmp_path: Path) -> None:
    bench = Bench(deaths=2)
    metrics = await optimiser(bench, tmp_path).step(STEP, a_step(), bench.told.append)
    again = ["export", "update 4"]
    assert bench.log == ["step", *again, "restart", *again, "restart", *again, "probe"]
    assert "probe/max_abs_dlogp" in metrics
    assert "it is dead; starting it again (2 of 3)" in bench.told
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_an_engine_that_keeps_dying_stops_the_run(tmp_path: Path) -> None:
    bench = Bench(deaths=9)
    with pytest.raises(RunError, match=r"it is dead after schedule\.engine_restarts=3"):
        await optimiser(bench, tmp_path).step(STEP, a_step(), bench.told.append)


async def test_an_engine_that_cannot_be_probed_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="without a probe"):
        await optimiser(Bench(), tmp_path, probed=False).resume([], print)


async def test_weights_that_do_not_reach_the_engine_stop_the_run_and_leave_no_file(tmp_path: Path) -> None:
    bench = Bench(fault=WeightSyncError("no"))
    with pytest.raises(WeightSyncError):
        await optimiser(bench, tmp_path).step(STEP, a_step(), bench.told.append)
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_step_of_excluded_trials_alone_trains_nothing_and_says_so(tmp_path: Path) -> None:
    bench = Bench()
    lost = [scored(None, "a", sample, termination=Termination.SANDBOX_LOST) for sample in (0, 1)]
    with pytest.raises(NoTrainableToken, match="0 kept and 2 excluded"):
        await optimiser(bench, tmp_path).step(STEP, lost, bench.told.append)
    assert bench.log == []


def test_what_is_not_defined_is_left_out_of_the_record(tmp_path: Path) -> None:
    record = optimiser(Bench(), tmp_path).record(STEP, {"alignment/pearson_r": float("nan"), "reward/mean": 0})
    assert record.metrics == {"reward/mean": 0.0}
    assert (record.step, record.policy_version) == (3, 4)


@pytest.mark.parametrize(("kept", "left"), [(None, [1, 2, 3, 4]), (2, [3, 4]), (1, [4])])
async def test_only_the_newest_checkpoints_stay(tmp_path: Path, kept: int | None, left: list[int]) -> None:
    made = optimiser(Bench(), tmp_path, kept=kept)
    for version in (1, 2, 3, 4):
        await made.checkpoint(version)
    assert Reader(Layout(root=tmp_path)).checkpoints() == left
    assert len(list((tmp_path / "checkpoints").iterdir())) == len(left)
