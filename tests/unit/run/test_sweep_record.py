"""A sweep's record: what each point came to, whatever ended it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.errors import ConfigError
from engine.run import sweep
from engine.run.sweep import Runner
from engine.store.layout import Layout
from engine.store.state import StateFile


class Job:
    """One that is a run."""

    def check(self, built: Any) -> None: ...

    async def run(self, built: Any) -> int:
        raise AssertionError


class Look:
    """One that is none."""

    async def run(self, built: Any) -> int:
        raise AssertionError


def built(root: Path, name: str, job: Any = None, **changes: Any) -> Any:
    facts = {"hash": name, "directory": root / name, "fresh": False, "experiment": "plain", "job": job or Job()}
    return SimpleNamespace(config={"run": {"root": str(root)}}, **facts | changes)


def a_runner(execute: Any = lambda act: act(), asked: Callable[[], bool] = lambda: False) -> Runner:
    """What stands for a composed configuration is what its execution does."""
    return Runner(execute, asked)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Three points, `a`, `b` and `c`."""
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    made = a_runner()
    for name in "abc":
        made.take_point(f"x={name}", built(tmp_path, name))
    made.begin_sweep()
    return made


def points(root: Path) -> list[dict[str, Any]]:
    (file,) = (root / "sweeps").glob("*/summary.json")
    found: list[dict[str, Any]] = json.loads(file.read_text())["points"]
    return found


def finish(root: Path) -> int:
    """As a job ends."""
    root.mkdir()
    StateFile(Layout(root=root)).update("finished")
    Layout(root=root).summary.write_text('{"reward": {"first": 0.25, "last": 0.5}}')
    return 0


def test_the_table_is_printed_when_a_point_fails_and_at_the_end(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acts = [lambda: finish(tmp_path / "a"), lambda: 2, lambda: finish(tmp_path / "c")]
    shown = []
    for index, act in enumerate(acts):
        runner.run_point(index, act)  # type: ignore[arg-type]
        shown.append(capsys.readouterr().out)
    assert [len(text.splitlines()) for text in shown] == [0, 5, 5]
    assert [point["state"] for point in points(tmp_path)] == ["finished", "failed", "finished"]
    assert [point["reward_last"] for point in points(tmp_path)] == [0.5, None, 0.5]


def test_an_interruption_is_recorded_told_and_goes_on_up(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_point(0, interrupted)  # type: ignore[arg-type]
    assert [point["state"] for point in points(tmp_path)] == ["interrupted", "waiting", "waiting"]
    assert "x=a        interrupted  130" in capsys.readouterr().out


def test_once_it_was_asked_to_end_no_further_point_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the point during which it was asked had nothing left to give up."""
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    asked: list[str] = []
    runner = a_runner(asked=lambda: bool(asked))
    for name in "ab":
        runner.take_point(f"x={name}", built(tmp_path, name))
    runner.begin_sweep()

    def last_step() -> int:
        asked.append("SIGTERM")
        return finish(tmp_path / "a")

    assert runner.run_point(0, last_step) == 0  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        runner.run_point(1, lambda: finish(tmp_path / "b"))  # type: ignore[arg-type]
    assert [point["state"] for point in points(tmp_path)] == ["finished", "waiting"]
    told = capsys.readouterr()
    assert "x=b        waiting" in told.out
    assert "point 2 of 2" not in told.err


def test_points_that_only_the_sweeper_knows_end_with_it_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        a_runner(asked=lambda: True).run_point(0, lambda: 0)  # type: ignore[arg-type]


def test_points_of_an_earlier_start_are_read_from_their_directories(runner: Runner, tmp_path: Path) -> None:
    finish(tmp_path / "c")
    (tmp_path / "b").mkdir()
    StateFile(Layout(root=tmp_path / "b")).update("rollout")
    runner.run_point(0, lambda: finish(tmp_path / "a"))  # type: ignore[arg-type]
    assert [point["state"] for point in points(tmp_path)] == ["finished", "waiting", "finished"]


def test_a_damaged_directory_spoils_no_record(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "state.json").write_text("{")
    (tmp_path / "b" / "summary.json").write_text("[]")
    runner.run_point(0, lambda: 0)  # type: ignore[arg-type]
    assert points(tmp_path)[1]["state"] == "waiting"


def test_a_record_that_cannot_be_written_is_told_and_stops_no_point(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = (tmp_path / "sweeps").iterdir()
    (record / "summary.json").mkdir()
    assert runner.run_point(0, lambda: 0) == 0  # type: ignore[arg-type]
    assert "summary.json cannot be written: Is a directory" in capsys.readouterr().err


def test_points_that_start_anew_are_not_finished_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    runner = a_runner()
    for name in "ab":
        finish(tmp_path / name)
        runner.take_point(f"x={name}", built(tmp_path, name, fresh=True))
    runner.begin_sweep()
    runner.run_point(0, lambda: 0)  # type: ignore[arg-type]
    assert [point["state"] for point in points(tmp_path)] == ["finished", "waiting"]


def test_the_record_is_named_by_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)

    def record(*hashes: str, **changes: Any) -> Path:
        runner = a_runner(lambda act: 0)  # it gives its claim up as it goes out of scope
        for number, name in enumerate(hashes):
            runner.take_point(f"x={number}", built(tmp_path, name, **changes))
        return runner.begin_sweep()

    first = record("a", "b")
    assert first == record("a", "b", fresh=True)
    assert len({first, record("a", "c"), record("a", "b", "c")}) == 3
    assert first.parent == tmp_path / "sweeps"
    assert first.name.startswith("plain-")


def test_what_is_no_run_may_share_a_directory_and_has_none_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    runner = a_runner(lambda act: 0)
    for name in ("job=show", "job=prepare"):
        runner.take_point(name, built(tmp_path, "same", Look()))
    runner.begin_sweep()
    runner.run_point(0, None)  # type: ignore[arg-type]
    assert points(tmp_path)[0] == {
        "overrides": "job=show",
        "state": "finished",
        "exit_code": 0,
        "steps": None,
        "reward_first": None,
        "reward_last": None,
        "directory": None,
    }


def test_two_points_in_one_directory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    runner = a_runner(lambda act: 0)
    runner.take_point("observe.x=1", built(tmp_path, "same"))
    runner.take_point("observe.x=2", built(tmp_path, "same"))
    with pytest.raises(ConfigError) as refused:
        runner.begin_sweep()
    assert str(refused.value) == (
        "run.name='same': the points observe.x=1 and observe.x=2 are one run: what they differ in decides no result; "
        "leave one out, or give each a run.name of its own, one command each"
    )


def test_a_sweep_that_is_running_is_refused_and_its_record_left_alone(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.run_point(0, lambda: finish(tmp_path / "a"))  # type: ignore[arg-type]
    other = a_runner()
    for name in "abc":
        other.take_point(f"x={name}", built(tmp_path, name))
    with pytest.raises(ConfigError) as refused:
        other.begin_sweep()
    (record,) = (tmp_path / "sweeps").iterdir()
    assert str(refused.value) == (
        f"run.root={str(tmp_path)!r}: process {os.getpid()} is running this very sweep, with its record in {record}; "
        "wait for it or end it, or name another folder"
    )
    assert [point["state"] for point in points(tmp_path)] == ["finished", "waiting", "waiting"]
