"""What a task declares beside its patch: read as Harbor words it, refused where it cannot be carried safely."""

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifact_task import artifact_draft
from calc_task import IMAGE

from engine.core.errors import ConfigError
from engine.core.records import Task
from engine.tasks.artifacts import read_artifacts
from engine.tasks.harbor import read_task, write_task


def read(directory: Path) -> Task:
    return read_task(directory, split="train", image=IMAGE)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    draft = artifact_draft(IMAGE)
    directory = write_task(draft, tmp_path / "calc")
    task = read(directory)
    assert task.artifacts == ("/testbed/build", "/tmp/out")
    assert task.reference == draft.reference
    config = tomllib.loads((directory / "task.toml").read_text())
    assert config["artifacts"] == list(draft.artifacts) and config["schema_version"] == "1.4"
    assert "cp -R /solution/artifacts/. /" in (directory / "solution/solve.sh").read_text()


def test_the_fingerprint_covers_them_and_is_as_it_was_without(tmp_path: Path) -> None:
    draft = artifact_draft(IMAGE)
    whole = read(write_task(draft, tmp_path / "a"))
    less = replace(draft.reference, artifacts=draft.reference.artifacts[:1])
    one = read(write_task(replace(draft, artifacts=draft.artifacts[:1], reference=less), tmp_path / "b"))
    assert whole.fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("entries", "paths"),
    [
        ([], ()),
        (["build/x", "/tmp/out"], ("/testbed/build/x", "/tmp/out")),
        ([{"source": "/home/agent/db"}, {"source": "x", "exclude": [], "destination": None}],
         ("/home/agent/db", "/testbed/x")),
    ],
)  # fmt: skip
def test_paths_are_absolute_or_of_the_workdir(entries: list[Any], paths: tuple[str, ...]) -> None:
    found = read_artifacts({"artifacts": entries}, Path("task.toml"), "/testbed", ("tests",))
    assert found == tuple(sorted(paths))


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("/tmp/out", "is no list"),
        ([3], "names no path"),
        (["/"], "names no path"),
        ([""], "names no path"),
        (["../x"], "climbs"),
        (["/tmp/../etc"], "climbs"),
        (["/etc/passwd"], "which no agent may replace"),
        (["/usr/lib/python3"], "which no agent may replace"),
        (["/opt/grader"], "which no agent may replace"),
        (["/run/lego"], "which no agent may replace"),
        (["/tmp"], "which no agent may replace"),
        (["/testbed"], "holds the repository"),
        (["."], "holds the repository"),
        (["tests"], "meets the tests at /testbed/tests"),
        (["tests/data/x.bin"], "meets the tests"),
        (["/tmp/a", "/tmp/a/b"], "is declared too"),
        (["/tmp/a", "/tmp/a"], "is declared too"),
        ([{"source": "/tmp/a", "service": "db"}], "service of an artefact is not supported"),
        ([{"source": "/tmp/a", "exclude": ["*.o"], "destination": "x"}], "destination, exclude of an artefact"),
    ],
)
def test_what_cannot_be_carried_safely_is_refused(entries: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        read_artifacts({"artifacts": entries}, Path("t/task.toml"), "/testbed", ("tests",))
    assert caught.value.key == "t/task.toml: artifacts"


def test_a_reference_without_its_artefacts_is_refused(tmp_path: Path) -> None:
    directory = write_task(artifact_draft(IMAGE), tmp_path / "calc")
    shutil.rmtree(directory / "solution/artifacts/tmp")
    with pytest.raises(ConfigError, match=r"'/tmp/out'.*put what solution/solve.sh makes below .*artifacts/tmp/out"):
        read(directory)
    shutil.rmtree(directory / "solution/artifacts")
    with pytest.raises(ConfigError, match="nobody could tell whether the task judges"):
        read(directory)
    shutil.rmtree(directory / "solution/files")
    assert read(directory).reference is None  # a task without a reference, which its untouched base alone tries


def test_a_reference_brings_nothing_that_is_not_declared(tmp_path: Path) -> None:
    directory = write_task(artifact_draft(IMAGE), tmp_path / "calc")
    (directory / "solution/artifacts/srv").mkdir()
    (directory / "solution/artifacts/srv/x").write_text("")
    with pytest.raises(ConfigError, match="'/srv/x': is not declared"):
        read(directory)
