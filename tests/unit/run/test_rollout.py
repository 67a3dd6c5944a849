"""Retries are bounded and for infrastructure alone, what is finished is never run again, a dead engine ends it all."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plan_pieces import SCHEDULE, tasks

from engine.core.errors import RunError
from engine.core.records import Scored, Termination, Trajectory, Trial, TrialKey, Verdict
from engine.run import rollout
from engine.run.rollout import Rollout
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer


class Engine:
    """The part of an engine that a rollout asks."""

    def __init__(self) -> None:
        self.reason = ""

    def failure(self) -> str:
        return self.reason


def a_trial(sample: int) -> Trial:
    return Trial(
        key=TrialKey(run="r", epoch=0, task="t00", sample=sample, attempt=0),
        task=tasks(1, 0)[0],
        harness="a",
        policy_version=0,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )


def ended(trial: Trial, termination: Termination) -> Scored:
    trajectory = Trajectory(
        trial=trial,
        exchanges=(),
        segments=(),
        termination=termination,
        reason="as scripted",
        timings={},
        patch=None,
        findings=(),
    )
    verdict = Verdict(reward=0.0, resolved=False, tests=(), evidence="", findings=(), grade_s=0.0)
    return Scored(trajectory=trajectory, verdict=None if termination.excluded else verdict)


@dataclasses.dataclass
class Bench:
    rollout: Rollout
    engine: Engine
    layout: Layout
    ran: list[str]
    running: list[str]
    """What the rollout said of the trials in flight, while each ran."""
    endings: dict[str, Termination]
    retried: list[str] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)

    async def run(self, *samples: int) -> list[Scored]:
        return await self.rollout.run(
            0,
            [a_trial(sample) for sample in samples],
            lambda scored: self.finished.append(str(scored.trajectory.trial.key)),
            lambda scored: self.retried.append(str(scored.trajectory.trial.key)),
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    ran: list[str] = []
    running: list[str] = []
    endings: dict[str, Termination] = {}

    async def run_trial(trial: Trial, shop: Any, enter: Callable[[str], None]) -> Scored:
        ran.append(str(trial.key))
        enter("agent")
        running.append(made.running())
        return ended(trial, endings.get(str(trial.key), Termination.AGENT_COMPLETED))

    monkeypatch.setattr(rollout, "run_trial", run_trial)
    layout, engine = Layout(root=tmp_path), Engine()
    made = Rollout(None, engine, SCHEDULE, Reader(layout), Writer(layout))  # type: ignore[arg-type]
    return Bench(rollout=made, engine=engine, layout=layout, ran=ran, running=running, endings=endings)


async def test_infrastructure_is_tried_again_within_bounds(bench: Bench) -> None:
    bench.endings |= {"e0-t00-s0-a0": Termination.SANDBOX_LOST, "e0-t00-s1-a0": Termination.GRADER_FAILED}
    bench.endings |= {"e0-t00-s1-a1": Termination.SETUP_FAILED}
    first, second = await bench.run(0, 1)
    assert first.trajectory.trial.key.attempt == 1
    assert first.verdict is not None
    assert second.verdict is None
    assert sorted(bench.ran) == ["e0-t00-s0-a0", "e0-t00-s0-a1", "e0-t00-s1-a0", "e0-t00-s1-a1"]
    assert sorted(bench.retried) == ["e0-t00-s0-a0", "e0-t00-s1-a0"]
    assert sorted(bench.finished) == ["e0-t00-s0-a1", "e0-t00-s1-a1"]


async def test_the_agents_own_clock_is_not_tried_again(bench: Bench) -> None:
    bench.endings["e0-t00-s0-a0"] = Termination.AGENT_TIMEOUT
    (scored,) = await bench.run(0)
    assert scored.verdict is None
    assert bench.ran == ["e0-t00-s0-a0"]


async def test_what_is_finished_is_read_and_not_run_again(bench: Bench) -> None:
    bench.endings["e0-t00-s0-a0"] = Termination.SANDBOX_LOST
    await bench.run(0, 1)
    ran = list(bench.ran)
    again = await bench.run(0, 1)
    assert bench.ran == ran
    assert [scored.trajectory.trial.key.attempt for scored in again] == [1, 0]


async def test_what_infrastructure_cost_is_owed_again_after_a_restart(bench: Bench) -> None:
    """A step whose trials were all lost to a full disk can go on once there is room."""
    bench.endings |= {f"e0-t00-s0-a{attempt}": Termination.SETUP_FAILED for attempt in (0, 1)}
    (given_up,) = await bench.run(0)
    assert given_up.verdict is None
    (scored,) = await bench.run(0)
    assert scored.trajectory.trial.key.attempt == 2
    assert scored.verdict is not None
    assert len(bench.ran) == 3


async def test_a_dead_engine_ends_the_rollout_and_costs_no_attempt(bench: Bench) -> None:
    bench.endings["e0-t00-s0-a0"] = Termination.ENGINE_ERROR
    bench.engine.reason = "vLLM ended by itself"
    with pytest.raises(RunError, match="vLLM ended by itself; the same command goes on"):
        await bench.run(0)
    bench.engine.reason = ""
    bench.endings.clear()
    (scored,) = await bench.run(0)
    assert scored.trajectory.trial.key.attempt == 0
    assert scored.verdict is not None


async def test_a_defect_passes_through_as_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(trial: Trial, shop: Any, enter: Any) -> Scored:
        raise ZeroDivisionError

    monkeypatch.setattr(rollout, "run_trial", broken)
    with pytest.raises(ZeroDivisionError):
        await bench.run(0, 1)


async def test_it_tells_how_many_trials_run_and_where_the_oldest_is(bench: Bench) -> None:
    assert bench.rollout.running() == ""
    await bench.run(0, 1)
    assert [re.sub(r"\d+ s", "N s", line) for line in bench.running] == ["1 running (oldest N s in agent)"] * 2
    bench.endings["e0-t00-s2-a0"] = Termination.SANDBOX_LOST
    bench.engine.reason = "gone"
    with pytest.raises(RunError):
        await bench.run(2)
    assert bench.rollout.running() == ""
