"""The name of a run and what is written beside it."""

import copy
import subprocess
from pathlib import Path

from engine.config.bundle import code_version, configuration_hash, dependencies, run_directory

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

    assert code_version(tmp_path) == {"commit": None, "dirty": None}
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    assert code_version(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert code_version(tmp_path) == {"commit": commit, "dirty": True}


def test_dependencies_are_named_with_versions() -> None:
    found = dependencies()
    assert found["hydra-core"].startswith("1.3")
    assert list(found) == sorted(found)
