"""Harbor directories: what is written is read back; what cannot be honoured is refused by file and key."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from calc_task import FAIL_TO_PASS, FIXED_CODE, IMAGE, PASS_TO_PASS, calc_draft, write_calc

from engine.core.errors import ConfigError
from engine.core.patch import difference
from engine.core.records import Task
from engine.tasks.harbor import read_task, write_task


def read(directory: Path) -> Task:
    return read_task(directory, split="train", image=IMAGE)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    draft = calc_draft()
    task = write_calc(tmp_path)
    assert (task.id, task.instruction, task.workdir) == ("calc", draft.instruction, "/testbed")
    assert (task.fail_to_pass, task.pass_to_pass) == (FAIL_TO_PASS, PASS_TO_PASS)
    assert task.reference == draft.reference
    assert (task.agent_timeout_s, task.grade_timeout_s, task.memory_mb, task.cpus) == (60, 30, 512, 1)
    assert (task.repository / "tests/test_calc.py").read_bytes() != (task.tests / "tests/test_calc.py").read_bytes()


def test_a_reference_may_add_empty_and_delete_files(tmp_path: Path) -> None:
    draft = calc_draft()
    after = {**draft.repository, "calc/new.py": (b"", False), "calc/__init__.py": (FIXED_CODE, False)}
    del after["bin/run"]
    reference = difference(draft.repository, after)
    task = read(write_task(replace(draft, reference=reference), tmp_path / "calc"))
    assert task.reference == reference


def test_the_fingerprint_covers_all_that_decides(tmp_path: Path) -> None:
    plain = write_calc(tmp_path / "a")
    assert write_calc(tmp_path / "b").fingerprint == plain.fingerprint
    files = ["instruction.md", "environment/repository/calc/__init__.py", "tests/files/tests/test_calc.py"]
    seen = {plain.fingerprint}
    for index, name in enumerate(files):
        directory = write_calc(tmp_path / f"c{index}").directory
        with (directory / name).open("a") as file:
            file.write("\n")
        seen.add(read(directory).fingerprint)
    seen.add(read_task(plain.directory, split="train", image=replace(IMAGE, pip=("x==1",))).fingerprint)
    assert len(seen) == len(files) + 2


def test_what_harbor_users_run_is_there(tmp_path: Path) -> None:
    directory = write_calc(tmp_path).directory
    config = tomllib.loads((directory / "task.toml").read_text())
    assert config["schema_version"] == "1.4"
    assert config["environment"]["network_mode"] == "no-network"
    assert (directory / "environment/Dockerfile").read_text().startswith("FROM debian:bookworm-slim\n")
    for script in ("tests/test.sh", "solution/solve.sh"):
        assert (directory / script).stat().st_mode & 0o111
    compile((directory / "tests/run_tests.py").read_text(), "run_tests.py", "exec")


TOML = [
    ('schema_version = "1.4"', 'schema_version = "2.0"', "schema_version", "1.0 to 1.4"),
    ("[agent]", '[[steps]]\nname = "a"\n[agent]', "steps", "several steps"),
    ("timeout_sec = 60", "timeout_sec = -1", "agent.timeout_sec", "not positive"),
    ("timeout_sec = 60", 'timeout_sec = "60"', "agent.timeout_sec", "wrong type str"),
    ("timeout_sec = 30\n", "", "verifier.timeout_sec", "missing"),
    ("memory_mb = 512", "memory_mb = 512\ngpus = 1", "environment.gpus", "GPU"),
    ('network_mode = "no-network"', 'network_mode = "public"', "environment.network_mode", "no network"),
    ('workdir = "/testbed"', 'workdir = "testbed"', "environment.workdir", "not absolute"),
    ("[agent]", '[[artifacts]]\nname = "x"\n[agent]', "artifacts", "is not supported"),
    ("[agent]", '[[verifier.collect]]\ncommand = "x"\n[agent]', "verifier.collect", "nothing is run"),
    ("[agent]", "[agent]\nuser = 3", "agent.user", "user"),
]


@pytest.mark.parametrize(("old", "new", "key", "problem"), TOML)
def test_a_wrong_task_toml_names_file_and_key(tmp_path: Path, old: str, new: str, key: str, problem: str) -> None:
    directory = write_calc(tmp_path).directory
    edit(directory / "task.toml", old, new)
    with pytest.raises(ConfigError, match=problem) as caught:
        read(directory)
    assert str(directory / "task.toml") in str(caught.value)
    assert key in caught.value.key
    assert "\n" not in str(caught.value)


GRADING = [
    ({"fail_to_pass": []}, "fail_to_pass", "empty"),
    ({"fail_to_pass": ["tests/test_calc.py"]}, "fail_to_pass", "no test id"),
    ({"fail_to_pass": ["other/test_x.py::test"]}, "fail_to_pass", "below test_paths"),
    ({"fail_to_pass": ["tests/test_none.py::test"]}, "fail_to_pass", "missing"),
    ({"pass_to_pass": list(FAIL_TO_PASS)}, "pass_to_pass", "in fail_to_pass too"),
    ({"pass_to_pass": [PASS_TO_PASS[0]] * 2}, "pass_to_pass", "named twice"),
    ({"test_paths": "tests"}, "test_paths", "not a list"),
    ({"test_paths": ["../tests"]}, "test_paths", "leaves the repository"),
    ({"extra": []}, "extra", "not a known key"),
]


@pytest.mark.parametrize(("changes", "key", "problem"), GRADING)
def test_a_wrong_grading_names_file_and_key(tmp_path: Path, changes: dict, key: str, problem: str) -> None:
    directory = write_calc(tmp_path).directory
    file = directory / "tests/grading.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ConfigError, match=problem) as caught:
        read(directory)
    assert caught.value.key == f"{file}: {key}"


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "tests/grading.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    directory = write_calc(tmp_path).directory
    (directory / name).unlink()
    with pytest.raises(ConfigError, match="missing"):
        read(directory)


def test_a_link_in_the_repository_is_refused(tmp_path: Path) -> None:
    directory = write_calc(tmp_path).directory
    (directory / "environment/repository/link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="not a regular file"):
        read(directory)


def test_a_withheld_file_outside_the_test_paths_is_refused(tmp_path: Path) -> None:
    directory = write_calc(tmp_path).directory
    (directory / "tests/files/calc.py").write_text("")
    with pytest.raises(ConfigError, match="outside test_paths"):
        read(directory)
