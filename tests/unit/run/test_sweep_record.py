"""A sweep's record: what each point came to, whatever ended it."""

import json
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


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Three points, `a`, `b` and `c`; what stands for a composed configuration is what its execution does."""
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    made = Runner(lambda act: act())  # type: ignore[operator]
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
    (tmp_path / "sweeps").write_text("")
    assert runner.run_point(0, lambda: 0) == 0  # type: ignore[arg-type]
    assert "summary.json cannot be written: Not a directory" in capsys.readouterr().err


def test_points_that_start_anew_are_not_finished_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)
    runner = Runner(lambda act: act())  # type: ignore[operator]
    for name in "ab":
        finish(tmp_path / name)
        runner.take_point(f"x={name}", built(tmp_path, name, fresh=True))
    runner.begin_sweep()
    runner.run_point(0, lambda: 0)  # type: ignore[arg-type]
    assert [point["state"] for point in points(tmp_path)] == ["finished", "waiting"]


def test_the_record_is_named_by_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "assemble", lambda composed: composed)

    def record(*hashes: str, **changes: Any) -> Path:
        runner = Runner(lambda act: 0)
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
    runner = Runner(lambda act: 0)
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
    runner = Runner(lambda act: 0)
    runner.take_point("observe.x=1", built(tmp_path, "same"))
    runner.take_point("observe.x=2", built(tmp_path, "same"))
    with pytest.raises(ConfigError) as refused:
        runner.begin_sweep()
    assert str(refused.value) == (
        "run.name='same': the points observe.x=1 and observe.x=2 are one run: what they differ in decides no result; "
        "leave one out, or give each a run.name of its own, one command each"
    )
