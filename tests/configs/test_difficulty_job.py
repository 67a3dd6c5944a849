"""`job=difficulty` and `tasks=selected` as a person meets them: from stored runs to a file, to another run's pool."""

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from calc_task import write_calc
from learning_pieces import a_run, trials
from test_command_line import engine

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.config.schemas import TREE, load_registry
from engine.config.validate import problems
from engine.config.written import read_written, written_tree
from engine.core.contracts import ImageStore
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.records import Task
from engine.run import workbench
from engine.run.jobs.difficulty import DifficultyJob
from engine.run.reproduce import fingerprints, resumed
from engine.run.selection import left_out, tell_left_out, unselected
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.state import StateFile
from engine.store.writer import Writer
from engine.tasks.laptop import LaptopPool

REWARDS = {"never": [0.0] * 4, "once": [0.0, 1.0, 0.0, 0.0], "always": [1.0] * 4, "held": [0.0] * 4}
TWICE = ["tasks@tasks.pool=selected", "tasks.pool.counts=c"]
SELECTED = ["tasks=selected", "tasks@tasks.pool=harbor", "model=tiny_qwen3_moe"]


def some_tasks(folder: Path) -> dict[str, Task]:
    """A Harbor directory for each of `REWARDS`, as the configured pool reads it."""
    for name in REWARDS:
        write_calc(folder / "new").directory.rename(folder / name)
    (folder / "new").rmdir()
    return {task.id: task for task in unselected(selected(folder.parent)).tasks.load()}


def a_run_on(tasks: dict[str, Task], root: Path) -> Layout:
    """Stored trials of these very tasks."""
    layout = Layout(root=root)
    for one in trials(REWARDS, "train"):
        trial = one.trajectory.trial
        trial = dataclasses.replace(trial, task=tasks[trial.task.id])
        Writer(layout).trial(0, dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, trial=trial)))
    description = {"configuration": {}, "configuration_hash": "0", "checkpoint": "c0"}
    Writer(layout).text("config.yaml", yaml.safe_dump(description))
    StateFile(layout).update("finished", step=1, steps=1)
    return layout


def counted(own: Path, **changes: Any) -> int:
    """The job by itself; `own`: the directory of the configuration's run."""
    values = {"runs": [], "split": "train", "first_step": None, "last_step": None, "of": None, "to": None}
    built: Any = SimpleNamespace(directory=own, written=None, observe=SimpleNamespace(progress_interval_s=8))
    return asyncio.run(DifficultyJob(**(values | changes)).run(built))


def selected(folder: Path, *more: str) -> Any:
    given = [f"tasks.counts={folder / 'counts.json'}", f"tasks.pool.path={folder / 'tasks'}"]
    return assemble(compose([*SELECTED, *given, "tasks.pool.validation=[held]", *more]))


def test_from_a_run_to_a_file_to_the_pool_of_another_run(tmp_path: Path) -> None:
    a_run_on(some_tasks(tmp_path / "tasks"), tmp_path / "one")
    done = engine(tmp_path, "job=difficulty", "job.runs=[one]", "job.to=counts.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["one"]
    assert any(line.startswith("solved 1 of 4") and "25.0% (4.6% to 69.9%), 1 task" in line for line in lines)
    assert "one: always solved (1): always" in lines
    assert lines[-2:] == ["solve counts: counts.json", "one/reports/difficulty.html"]
    assert (tmp_path / lines[-1]).is_file()
    counts = json.loads((tmp_path / "counts.json").read_text())["counts"]
    assert {count["task"]: count["solved"] for count in counts} == {"never": 0, "once": 1, "always": 4, "held": 0}
    assert {(count["of"], count["run"], count["checkpoint"], *count["policy_versions"]) for count in counts} == {
        (4, "one", "c0", 3, 3)
    }
    built = selected(tmp_path)
    assert [(task.id, task.split) for task in built.tasks.load()] == [("held", "validation"), ("once", "train")]
    assert left_out(built.tasks) == [
        f"tasks: 1 of 3 training tasks selected, solved 1 to 3 of 4 by {tmp_path / 'counts.json'}",
        "  dropped 1 solved less than 1 of 4: never",
        "  dropped 1 solved more than 3 of 4: always",
    ]
    assert len(unselected(built).tasks.load()) == 4, "of which a warm start is made"


def test_counts_that_changed_are_another_pool_to_a_run_that_goes_on(tmp_path: Path) -> None:
    a_run_on(some_tasks(tmp_path / "tasks"), tmp_path / "one")
    file = tmp_path / "counts.json"
    counted(tmp_path / "one", to=str(file))
    here = {"code": {"fingerprint": ""}, "python": "", "platform": "", "hardware": {}, "dependencies": {}}
    built = selected(tmp_path)
    first = {"configuration": built.config, "configuration_hash": built.hash, "checkpoint": "c", **here}
    first["data"] = fingerprints(built.tasks.load())
    assert resumed(built, first, dict(first)) == first
    file.write_text(file.read_text().replace('"solved": 4', '"solved": 3'))
    now = selected(tmp_path)
    assert now.hash == built.hash
    with pytest.raises(ConfigError, match=r"gives other tasks \(1 new \(always\)\) here"):
        resumed(now, first, {**first, "data": fingerprints(now.tasks.load())})


def test_a_warm_start_is_made_of_the_whole_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a selection would change the very policy that it was made for. The key of one is that of the other."""
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))  # a machine on which nothing is prepared
    bound: list[Any] = []
    monkeypatch.setattr(workbench.warm_start, "bind", lambda built: bound.append(built.tasks))
    counts = f"tasks.counts={tmp_path / 'counts.json'}"
    for chosen in (["tasks=laptop"], ["tasks=selected", counts], ["tasks=selected", counts, *TWICE]):
        with pytest.raises(ConfigErrors):
            workbench.check_machine(assemble(compose(chosen)), cast(ImageStore, DebianImageStore()))
    assert [vars(pool) for pool in bound] == [vars(bound[0])] * 3
    assert {type(pool) for pool in bound} == {LaptopPool}


def test_what_is_left_out_is_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run_on(some_tasks(tmp_path / "tasks"), tmp_path / "one")
    counted(tmp_path / "one", to=str(tmp_path / "counts.json"))
    capsys.readouterr()
    tell_left_out(selected(tmp_path).tasks)
    tell_left_out(unselected(selected(tmp_path)).tasks)
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 3)


def test_what_a_run_with_a_selection_wrote_is_composed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    built = selected(tmp_path)
    record = {"configuration": built.config, "configuration_hash": built.hash, "interpolated": dict(built.interpolated)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(record))
    written = read_written(str(tmp_path))
    again = compose(["tasks.pool.validation=[once]"], written_tree(written, TREE))
    assert problems(again, load_registry()) == []
    assert again.config["tasks"] == {
        **built.config["tasks"],
        "pool": {**built.config["tasks"]["pool"], "validation": ["once"]},
    }


def test_each_value_of_the_nested_pool_has_its_origin() -> None:
    origins = compose([*SELECTED, "tasks.counts=c", "tasks.pool.path=p"]).origins()
    assert origins["tasks.pool.validation"] == "tasks/harbor.yaml (command line)"
    assert origins["tasks.pool.path"] == "command line"
    assert origins["tasks.of"] == "tasks/selected.yaml (command line)"
    origins = compose(["tasks=selected", "tasks.counts=c"]).origins()
    assert (
        origins["tasks.pool.seed"]
        == "tasks/selected.yaml (command line)".replace("selected", "laptop").partition(" (")[0]
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["tasks@tasks.pool=harbour"], r"^tasks@tasks\.pool='harbour': unknown option; did you mean harbor\? "),
        (["tasks.path=x"], r"^tasks\.path='x': unknown key; did you mean tasks\.pool\.path\? "),
        (["tasks.pool.paht=x"], r"^tasks\.pool\.paht='x': unknown key; did you mean tasks\.pool\.path\? "),
        (
            ["tasks.counts=c", "tasks.pool.path=p", "tasks.solved_most=5"],
            r"^tasks\.solved_most=5: more than tasks\.of=4; ",
        ),
        (
            ["tasks.counts=c", "tasks.pool.path=p", "tasks.solved_least=4"],
            r"^tasks\.solved_least=4: more than tasks\.solved",
        ),
        (
            ["tasks.counts=c", "tasks.pool.path=p", "model=warm_qwen3_moe"],
            r"^tasks\.pool='engine.*': has no tasks for the",
        ),
        ([], r"^tasks\.pool\.path='\?\?\?': missing value;"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(given: list[str], problem: str) -> None:
    chosen = [text for text in SELECTED if text.partition("=")[0] not in {one.partition("=")[0] for one in given}]
    with pytest.raises(ConfigErrors, match=problem):
        assemble(compose([*chosen, *given]))


def test_a_place_that_no_option_makes_is_still_refused() -> None:
    with pytest.raises(ConfigErrors, match=r"^tasks@tasks\.pool='harbor': every group is in place already; "):
        compose(["tasks@tasks.pool=harbor"])


def test_steps_and_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"a": [0.0, 0.0]}, {"a": [1.0, 0.0]}, {"a": [1.0, 1.0]}]
    layout = a_run(tmp_path / "r", steps, {0: {"v": [1.0]}})
    for changes, solved in (
        ({}, "0 of 2"),
        ({"first_step": 1}, "1 of 2"),
        ({"first_step": 1, "of": 4}, "3 of 4"),
        ({"first_step": 2, "last_step": 2}, "2 of 2"),
        ({"split": "validation"}, "1 of 1"),
    ):
        assert counted(layout.root, **changes) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "100.0%" in line]
        assert line.startswith(f"solved {solved} "), changes
    for changes, problem in (
        (
            {"first_step": 3},
            r"^job\.first_step=3: .*/r has no finished trial of these steps; it has some of steps 0 to 2",
        ),
        ({"split": "validation", "first_step": 1}, r"^job\.first_step=1: "),
        ({"runs": [str(tmp_path / "gone")]}, r"^job\.runs='.*gone': there is no such folder"),
        ({"runs": [str(layout.root)] * 2}, r"^job\.runs='.*/r': named twice"),
    ):
        with pytest.raises(ConfigError, match=problem):
            counted(layout.root, **changes)


def test_a_file_that_is_there_is_refused_before_anything_is_read_or_written(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [0.0]}])
    (tmp_path / "there").touch()
    with pytest.raises(ConfigError, match=r"^job\.to='.*/there': is there already; "):
        counted(layout.root, to=str(tmp_path / "there"))
    assert not layout.reports.exists()


def test_counts_of_several_runs_stand_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        a_run(tmp_path / name, [{"t": [0.0, 1.0]}])
    counted(tmp_path / "none", runs=[str(tmp_path / name) for name in "ba"], to=str(tmp_path / "c.json"))
    counts = json.loads((tmp_path / "c.json").read_text())["counts"]
    assert [(count["run"], count["checkpoint"]) for count in counts] == [("b", None), ("a", None)]
    assert (tmp_path / "b/reports/difficulty.html").is_file() and not (tmp_path / "a/reports").exists()
    assert capsys.readouterr().out.splitlines()[0].split() == ["b", "a"]
