"""Retries are bounded and for infrastructure alone, what is finished is never run again, a dead engine is revived.

And the ledger says what became of each attempt, also of one that a kill cut off."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plan_pieces import SCHEDULE, tasks
from record_pieces import a_trial

from engine.core.errors import Interrupted, RunError
from engine.core.records import Scored, Termination, Trajectory, Trial, Verdict
from engine.run import rollout
from engine.run.drain import Drain
from engine.run.keeper import EngineKeeper
from engine.run.rollout import Rollout, entry
from engine.store.layout import Layout
from engine.store.ledger import Ledger, read_ledger
from engine.store.writer import Writer


class Engine:
    """The part of an engine that a rollout asks."""

    def __init__(self) -> None:
        self.reason = ""

        self.heals = True

    def failure(self) -> str:
        return self.reason

    async def restart(self) -> None:
        if self.heals:
            self.reason = ""


def trial_of(sample: int) -> Trial:
    return a_trial(tasks(1, 0)[0], run="r", sample=sample, harness="a")


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
    drain: Drain
    on_run: list[Callable[[], None]]
    """Called, and dropped, by the next trials that run."""
    retried: list[str] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)

    def states(self) -> dict[str, str]:
        return {trial: state for (_, trial), state in read_ledger(self.layout, 0).items()}

    async def run(self, *samples: int) -> list[Scored]:
        return await self.rollout.run(
            0,
            [trial_of(sample) for sample in samples],
            lambda scored: self.finished.append(str(scored.trajectory.trial.key)),
            lambda scored: self.retried.append(str(scored.trajectory.trial.key)),
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    ran: list[str] = []
    running: list[str] = []
    endings: dict[str, Termination] = {}
    on_run: list[Callable[[], None]] = []

    async def run_trial(trial: Trial, shop: Any, enter: Callable[[str], None]) -> Scored:
        ran.append(str(trial.key))
        enter("agent")
        running.append(made.running())
        if on_run:
            on_run.pop()()
        return ended(trial, endings.get(str(trial.key), Termination.AGENT_COMPLETED))

    monkeypatch.setattr(rollout, "run_trial", run_trial)
    layout, engine, drain = Layout(root=tmp_path), Engine(), Drain()
    keeper = EngineKeeper(engine, SCHEDULE.engine_restarts, lambda _: None)  # type: ignore[arg-type]
    made = Rollout(None, keeper, SCHEDULE, layout, drain)  # type: ignore[arg-type]
    return Bench(
        rollout=made,
        engine=engine,
        layout=layout,
        ran=ran,
        running=running,
        endings=endings,
        drain=drain,
        on_run=on_run,
    )


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


async def test_a_dead_engine_is_started_again_and_costs_no_attempt(bench: Bench) -> None:
    """Two deaths and a lost sandbox: were they all attempts, two would be too few."""

    def dies() -> None:
        bench.engine.reason = "vLLM ended by itself"

    bench.on_run += [dies, dies]
    bench.endings |= {f"e0-t00-s0-a{attempt}": Termination.ENGINE_ERROR for attempt in (0, 1)}
    bench.endings["e0-t00-s0-a2"] = Termination.SANDBOX_LOST
    (scored,) = await bench.run(0)
    assert scored.trajectory.trial.key.attempt == 3
    assert scored.verdict is not None
    excluded = dict.fromkeys([f"e0-t00-s0-a{attempt}" for attempt in (0, 1, 2)], "excluded")
    assert bench.states() == excluded | {"e0-t00-s0-a3": "finished"}


async def test_an_engine_that_keeps_dying_ends_the_rollout_and_the_trial_is_owed(bench: Bench) -> None:
    bench.engine.reason, bench.engine.heals = "vLLM ended by itself", False
    with pytest.raises(
        RunError, match=r"ended by itself after schedule\.engine_restarts=2; read its log, then the same"
    ):
        await bench.run(0)
    assert bench.ran == []
    assert bench.states() == {"e0-t00-s0-a0": "pending"}


async def test_asked_to_end_it_finishes_what_runs_and_begins_nothing(bench: Bench) -> None:
    bench.on_run.append(bench.drain.ask)
    with pytest.raises(Interrupted):
        await bench.run(0, 1, 2, 3)
    finished = sum(state == "finished" for state in bench.states().values())
    assert 1 <= finished == len(bench.ran) <= 2
    assert list(bench.states().values()).count("pending") == 4 - finished
    bench.drain.asked = False
    assert len(await bench.run(0, 1, 2, 3)) == 4
    assert len(bench.ran) == 4
    assert set(bench.states().values()) == {"finished"}


async def test_asked_to_end_after_the_last_trial_it_returns_them_all(bench: Bench) -> None:
    bench.on_run.append(bench.drain.ask)
    assert len(await bench.run(0)) == 1


async def test_a_trial_that_was_running_when_the_process_died_runs_once_more(bench: Bench) -> None:
    """Killed before its file was whole, and between the file and the ledger's line."""
    ledger = Ledger(bench.layout)
    names = [entry(trial_of(sample)) for sample in (0, 1)]
    ledger.move(0, names, "pending")
    ledger.move(0, names, "running")
    Writer(bench.layout).trial(0, ended(trial_of(1), Termination.AGENT_COMPLETED))
    await bench.run(0, 1)
    assert bench.ran == ["e0-t00-s0-a0"]
    assert set(bench.states().values()) == {"finished"}


async def test_a_trial_whose_file_was_deleted_is_sampled_again(bench: Bench) -> None:
    await bench.run(0)
    bench.layout.trial(0, "train", trial_of(0).key).unlink()
    await bench.run(0)
    assert bench.ran == ["e0-t00-s0-a0"] * 2
    assert "its file, or its routing, is gone" in bench.layout.ledger(0).read_text()


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
    bench.engine.reason, bench.engine.heals = "gone", False
    with pytest.raises(RunError):
        await bench.run(2)
    assert bench.rollout.running() == ""
