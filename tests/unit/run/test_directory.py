"""A run directory belongs to one process and one configuration at a time; whatever is wrong with it is one line."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from engine.config.bundle import run_directory
from engine.core.errors import ConfigError
from engine.core.whole import draft_of
from engine.run.directory import open_directory, open_trial_directory
from engine.store.layout import Layout

HOLD = """
import sys
from pathlib import Path
from engine.store.claim import claim
from engine.store.layout import Layout
with claim(Layout(root=Path(sys.argv[1]))) as holder:
    print(repr(holder), flush=True)
    sys.stdin.read()
"""


def built(root: Path, *, fresh: bool = False, name: str | None = "mine", **changes: Any) -> Any:
    """The parts of a `Built` that name its directory."""
    config = {
        "experiment": "plain",
        "run": {"root": str(root), "name": name, "fresh": fresh},
        "job": {"_target_": "train"},
        "inference": {"port": None},
        "train": {"learning_rate": 1.0, "betas": [0.9, 0.99]},
        **changes,
    }
    return SimpleNamespace(config=config, directory=run_directory(config), fresh=fresh)


def start(made: Any) -> None:
    """As a job does: claim the directory and write the configuration."""
    with open_directory(made) as layout:
        layout.config.write_text(yaml.safe_dump({"configuration": made.config}))


@contextmanager
def another_process(root: Path) -> Iterator[subprocess.Popen[str]]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "''\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("fresh", [False, True])
def test_two_processes_are_refused_and_a_dead_one_is_not(tmp_path: Path, fresh: bool) -> None:
    start(built(tmp_path))
    with another_process(tmp_path / "mine") as holder, pytest.raises(ConfigError) as refused:
        start(built(tmp_path, fresh=fresh))
    assert str(refused.value) == (
        f"run.name='mine': process {holder.pid} is working in {tmp_path}/mine; "
        "wait for it or end it, or set run.name to run another beside it"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    start(built(tmp_path, fresh=fresh))  # the holder was killed


def test_a_fresh_start_keeps_the_earlier_run(tmp_path: Path) -> None:
    for _ in range(3):
        start(built(tmp_path, fresh=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine~1", "mine~2"]


def test_a_name_that_holds_another_configuration_is_refused(tmp_path: Path) -> None:
    start(built(tmp_path))
    other = built(tmp_path, train={"learning_rate": 2.0, "betas": [0.9, 0.99]})
    with pytest.raises(ConfigError) as refused:
        start(other)
    assert str(refused.value) == (
        f"run.name='mine': {tmp_path}/mine holds a run with train.learning_rate=1, this one has 2; "
        "set another run.name, or run.fresh=true to set the earlier run aside"
    )
    start(built(tmp_path, inference={"port": 8000}, job={"_target_": "other"}))  # decides no result
    start(built(tmp_path, fresh=True, train=other.config["train"]))


@pytest.mark.parametrize("text", ["", "[", "configuration: 3", "\x00"])
def test_a_damaged_configuration_is_refused(tmp_path: Path, text: str) -> None:
    start(built(tmp_path))
    (tmp_path / "mine" / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine/config\.yaml cannot be read; set another run\.name"):
        start(built(tmp_path))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as refused:
        start(built(tmp_path / "file"))
    assert str(refused.value) == (
        f"run.root='{tmp_path}/file': {tmp_path}/file/mine cannot be made or written (Not a directory); "
        "name a folder to write to"
    )


def test_what_a_killed_process_left_in_scratch_is_removed(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path / "mine")
    (layout.scratch / "trial").mkdir(parents=True)
    start(built(tmp_path))
    assert not layout.scratch.exists()


def test_what_a_killed_process_left_in_it_goes_at_the_next_start(tmp_path: Path) -> None:
    made = built(tmp_path)
    start(made)
    layout = Layout(root=made.directory)
    (layout.scratch / "trial").mkdir(parents=True)
    half = (draft_of(layout.state), draft_of(layout.checkpoint(1)))
    half[0].touch()
    half[1].mkdir(parents=True)
    start(made)
    assert not layout.scratch.exists() and not any(draft.exists() for draft in half)
    assert layout.config.exists() and layout.checkpoints.is_dir()


def test_each_trial_has_a_directory_of_its_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with (
        open_trial_directory(built(runs, name=None), "a b/c") as one,
        open_trial_directory(built(runs, name=None), "a b/c") as two,
    ):
        assert [one.root.name, two.root.name] == ["trial-a-b-c-1", "trial-a-b-c-2"]
        assert one.lock.exists()
    with open_trial_directory(built(runs, name="mine"), "a") as named:
        assert named.root == runs / "mine"


def test_a_trial_is_mixed_into_no_other_run(tmp_path: Path) -> None:
    with open_directory(built(tmp_path)):
        pass
    with (
        pytest.raises(ConfigError, match=r"^run.name='mine': .* is there already"),
        open_trial_directory(built(tmp_path), "a"),
    ):
        pass
