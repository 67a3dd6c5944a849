"""`job=report` as a person meets it: the table, the path, which runs stand beside which, and what is refused."""

import os
from pathlib import Path

from learning_pieces import a_run
from test_command_line import engine

STEPS = [{"a": [0.0, 1.0], "b": [0.0, 0.0]}, {"a": [1.0, 1.0], "b": [0.0, 0.0]}]


def test_named_runs_beside_each_other(tmp_path: Path) -> None:
    for name in ("one", "two"):
        a_run(tmp_path / name, STEPS)
    done = engine(tmp_path, "job=report", "job.runs=[two,one]")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["two", "one"]
    assert any(line.startswith("difference") and line.count("+0.250 (") == 2 for line in lines)
    assert lines[-1] == "two/reports/learning.html"
    assert (tmp_path / lines[-1]).is_file()
    assert not (tmp_path / "one" / "reports").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_all_runs_the_newest_first_unless_one_is_meant(tmp_path: Path) -> None:
    for age, name in enumerate(("old", "new", "new~1", "empty")):
        steps = a_run(tmp_path / "runs" / name, STEPS if name != "empty" else []).steps
        if steps.is_dir():
            os.utime(steps, (1000 + age, 1000 + age))
    done = engine(tmp_path, "job=report")
    assert done.stdout.splitlines()[0].split() == ["new", "old"]
    done = engine(tmp_path, "job=report", "run.name=old")
    assert done.stdout.splitlines()[0].split() == ["old", "new"]


def test_a_link_to_a_run_beside_it_is_the_same_run(tmp_path: Path) -> None:
    a_run(tmp_path / "runs" / "one", STEPS)
    (tmp_path / "runs" / "latest").symlink_to("one")
    done = engine(tmp_path, "job=report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["one"]


def test_no_run_is_a_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for overrides, problem in (
        (["job.runs=[notes]"], "job.runs='notes': this folder holds no run"),
        (["job.runs=[gone]"], "job.runs='gone': there is no such folder"),
        ([], "job.runs=[]: no run under runs has finished a step"),
    ):
        done = engine(tmp_path, "job=report", *overrides)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(problem)
        assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
