"""`job=export` as a person meets it: the folder, a live run, and what is refused."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from atif_pieces import check, check_tokens
from learning_pieces import a_run
from samples_cases import scored
from test_command_line import engine
from view_pieces import recomputed

from engine.core.errors import ConfigError, RunError
from engine.observe.atif import export
from engine.observe.chosen import chosen
from engine.run.jobs.export import ExportJob
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer

STEPS = [{"a": [0.0, 1.0], "b": [None]}, {"a": [1.0]}]


def a_run_to_export(root: Path) -> Layout:
    layout = a_run(root, STEPS, {0: {"v": [1.0]}})
    writer = Writer(layout)
    configuration = {"harnesses": {"openhands": {"version": "1.58.2"}}, "model": {"name": "tiny"}}
    writer.text("config.yaml", yaml.safe_dump({"configuration": configuration, "configuration_hash": "0"}))
    writer.recomputed(0, recomputed([scored(1.0, "a", 1)], 0))
    return layout


def exported(own: Path, **changes: Any) -> int:
    """The job by itself; `own`: the directory of the configuration's run."""
    job = ExportJob(
        **{"run": None, "format": "atif", "to": None, "split": None, "step": None, "prompt_ids": True} | changes
    )
    built: Any = SimpleNamespace(directory=own, observe=SimpleNamespace(progress_interval_s=8))
    return asyncio.run(job.run(built))


def test_a_file_of_every_trial(tmp_path: Path) -> None:
    layout = a_run_to_export(tmp_path / "one")
    before = sorted(layout.root.rglob("*"))
    done = engine(tmp_path, "job=export", "job.run=one", "job.to=deep/out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["10 files of 5 trials", "deep/out"], "each has a continuation"
    assert "exporting 5/5" in done.stderr
    out = tmp_path / "deep/out"
    files = {str(path.relative_to(out)): json.loads(path.read_text()) for path in out.rglob("*.json")}
    assert {name.partition("/e0")[0] for name in files} == {
        "train/step=000000",
        "train/step=000001",
        "validation/step=000000",
    }
    for file in files.values():
        check(file)
    of_one = {name: file for name, file in files.items() if name.startswith("train/step=000000/e0-a-s1-a0.")}
    check_tokens(scored(1.0, "a", 1).trajectory.exchanges, of_one)
    root = of_one["train/step=000000/e0-a-s1-a0.json"]
    assert (root["extra"]["reward"], root["extra"]["advantage"], root["extra"]["step"]) == (1.0, 0.5, 0)
    assert root["agent"] == {"name": "openhands", "version": "1.58.2", "model_name": "tiny"}
    assert files["train/step=000000/e0-a-s0-a0.json"]["extra"]["advantage"] is None, "not trained"
    assert sorted(layout.root.rglob("*")) == before, "the run is left as it is"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_one_step_of_this_configurations_run_without_prompts(tmp_path: Path) -> None:
    a_run_to_export(tmp_path / "mine")
    assert exported(tmp_path / "mine", step=0, split="validation", prompt_ids=False) == 0
    folder = tmp_path / "mine/reports/atif"
    names = sorted(path.name for path in (folder / "validation/step=000000").iterdir())
    assert names == ["e0-v-s0-a0.cont-1.json", "e0-v-s0-a0.json"]
    assert [path.name for path in folder.iterdir()] == ["validation"]
    assert "prompt_token_ids" not in (folder / "validation/step=000000" / names[1]).read_text()


def test_a_run_that_has_begun_its_first_step(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "live", [])
    with pytest.raises(ConfigError, match=r"live': no trial of this run is finished; "):
        exported(layout.root)
    Writer(layout).trial(0, scored(1.0))
    assert exported(layout.root) == 0
    assert (layout.root / "reports/atif/train/step=000000/e0-t-s0-a0.json").is_file()


def test_a_trial_that_the_run_takes_back_meanwhile_is_passed_over(tmp_path: Path) -> None:
    layout = a_run_to_export(tmp_path)
    reader = Reader(layout)
    trials = chosen(reader, "train", 0)
    Writer(layout).forget_trial(0, scored(1.0, "a", 1).trajectory.trial)
    assert list(export.write(reader, trials, tmp_path / "out", True)) == [2, 0, 2]


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    layout = a_run_to_export(tmp_path / "one")
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    one = str(layout.root)
    for changes, problem in (
        ({"run": str(tmp_path / "gone")}, r"^job.run='.*/gone': there is no such folder"),
        ({"run": str(tmp_path / "taken")}, r"^job.run='.*/taken': this folder holds no run"),
        ({"to": str(tmp_path / "taken")}, r"^job.to='.*/taken': is there already; "),
        ({"to": str(tmp_path / "file/out")}, r"^job.to='.*/file/out': cannot be made or written \(File exists\); "),
        ({"to": str(layout.trials(0, "train") / "atif")}, r"^job.to='.*': lies among the run's own files; .*/reports"),
        ({"to": str(layout.root)}, r"^job.to='.*': is there already; "),
        ({"step": 5}, r"^job.step=5: .*/one has no finished trial of it; name one from 0 to 1$"),
        ({"step": 1, "split": "validation"}, r"^job.step=1: .*/one has no finished trial of it; "),
    ):
        with pytest.raises(ConfigError, match=problem):
            exported(tmp_path / "none", **{"run": one} | changes)
    (layout.trials(1, "train") / "e0-bad-s0-a0.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"e0-bad-s0-a0\.parquet is damaged"):
        exported(layout.root, to=str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "one", "taken"]
