"""The name of a run and what is written beside it."""

import copy
import subprocess
from pathlib import Path

import pytest

from engine.config import bundle
from engine.config.bundle import (
    code_version,
    configuration_hash,
    dependencies,
    differences,
    fingerprint,
    hardware,
    run_directory,
)

CONFIG = {
    "experiment": "plain",
    "seed": 0,
    "run": {"root": "runs", "name": None, "fresh": False},
    "job": {"_target_": "engine.run.jobs.train.TrainJob"},
    "observe": {"tensorboard": True},
    "inference": {"port": None, "gb": 1},
    "train": {"learning_rate": 1e-6, "betas": [0.9, 0.999]},
}


def _changed(**values: object) -> dict[str, object]:
    return {**copy.deepcopy(CONFIG), **values}


def test_hash_ignores_place_observation_and_order() -> None:
    same = [
        _changed(run={"root": "/elsewhere", "name": "x", "fresh": True}),
        _changed(observe={"tensorboard": False}),
        _changed(job={"_target_": "engine.run.jobs.show.ShowJob"}),
        _changed(inference={"port": 8000, "gb": 1.0}),
        _changed(inference={"port": None, "gb": 1, "python": "/opt/vllm/bin/python"}),
        dict(reversed(CONFIG.items())),
        _changed(train={"betas": [0.9, 0.999], "learning_rate": 0.000001}),
    ]
    assert {configuration_hash(config) for config in same} == {configuration_hash(CONFIG)}


def test_hash_changes_with_what_decides_results() -> None:
    others = [
        _changed(seed=1),
        _changed(inference={"port": None, "gb": 1.5}),
        _changed(train={"learning_rate": 1e-6, "betas": [0.999, 0.9]}),
    ]
    assert len({configuration_hash(config) for config in [CONFIG, *others]}) == 4


def test_hash_is_the_same_tomorrow() -> None:
    assert configuration_hash(CONFIG) == "ed3fd966fd6a"


def test_run_directory() -> None:
    assert run_directory(CONFIG) == Path(f"runs/plain-{configuration_hash(CONFIG)}")
    assert run_directory(_changed(run={"root": "/r", "name": "mine", "fresh": False})) == Path("/r/mine")


def test_code_version_says_when_files_differ_from_the_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def version() -> tuple[object, object]:
        found = code_version(tmp_path)
        return found["commit"], found["dirty"]

    assert version() == (None, None)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    assert version() == (commit, False)
    (tmp_path / "a").write_text("2")
    assert version() == (commit, True)


def test_the_code_s_fingerprint_is_of_its_files_alone(tmp_path: Path) -> None:
    (tmp_path / "engine" / "__pycache__").mkdir(parents=True)
    (tmp_path / "engine" / "a.py").write_text("1")
    first = code_version(tmp_path)["fingerprint"]
    (tmp_path / "engine" / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / "notes").write_text("x")
    assert code_version(tmp_path)["fingerprint"] == first
    (tmp_path / "engine" / "a.py").rename(tmp_path / "engine" / "b.py")
    assert code_version(tmp_path)["fingerprint"] != first


def test_a_checkpoint_s_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_WHOLE", 8)
    monkeypatch.setattr(bundle, "_SHARE", 2)
    folder = tmp_path / "checkpoint"
    (folder / "part").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "part" / "large").write_bytes(bytes(range(100)))
    first = fingerprint(folder)
    (folder / ".lock").write_text("x")
    assert fingerprint(folder) == first
    folder.rename(tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere"
    assert fingerprint(folder) == first
    for at in (0, 33, 65, 99):  # the shares of a file too large to be read whole: both ends and between
        changed = bytearray(range(100))
        changed[at] ^= 1
        (folder / "part" / "large").write_bytes(changed)
        assert fingerprint(folder) != first, at
    (folder / "part" / "large").write_bytes(bytes(range(101)))
    assert fingerprint(folder) != first


def test_hardware_is_named() -> None:
    found = hardware()
    assert found["processor"]
    assert found["cores"] >= 1
    assert found["memory_gb"] >= 1
    assert isinstance(found["gpus"], list)


def test_differences_name_dotted_keys() -> None:
    old, new = {"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"b": 1, "c": [2]}, "e": None, "f": 2}
    assert list(differences(old, new)) == [("a.c", [1], [2]), ("d", 1, None), ("f", None, 2)]


def test_dependencies_are_named_with_versions() -> None:
    found = dependencies()
    assert found["hydra-core"].startswith("1.3")
    assert list(found) == sorted(found)
