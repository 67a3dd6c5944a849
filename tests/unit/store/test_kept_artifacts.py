"""Artefacts of a trial: kept by contents, given back exactly, refused when they are not what they were."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from samples_cases import scored

from engine.core.errors import RunError
from engine.core.records import Artifact, Patch, Scored
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer

MADE = (Artifact(path="/a", contents=b"\x00same"), Artifact(path="/b/c", contents=b"\x00same", executable=True))


def a_trial_with(artifacts: tuple[Artifact, ...], sample: int = 0) -> Scored:
    one = scored(1.0, "t", sample)
    return replace(one, trajectory=replace(one.trajectory, patch=Patch(changes=(), diff="", artifacts=artifacts)))


def test_equal_contents_are_kept_once_and_come_back(tmp_path: Path) -> None:
    layout, one = Layout(root=tmp_path), a_trial_with(MADE)
    Writer(layout).trial(0, one)
    Writer(layout).trial(0, a_trial_with(MADE[:1], 1))
    assert len(list((tmp_path / "artifacts").iterdir())) == 1
    back = Reader(layout).trial(0, one.trajectory.trial)
    assert back is not None and back.trajectory.patch == one.trajectory.patch


@pytest.mark.parametrize("damage", ["other", "gone"])
def test_contents_that_are_not_what_they_were_are_no_artefact(tmp_path: Path, damage: str) -> None:
    layout = Layout(root=tmp_path)
    Writer(layout).trial(0, a_trial_with(MADE))
    (kept,) = (tmp_path / "artifacts").iterdir()
    kept.unlink() if damage == "gone" else kept.write_bytes(b"other")
    reader = Reader(layout)
    with pytest.raises(RunError, match=f"{kept} is damaged"):
        reader.artifacts(reader.row(0, "train", "e0-t-s0-a0", ("artifacts",))["artifacts"])


def test_a_trial_of_an_older_version_has_none(tmp_path: Path) -> None:
    layout, one = Layout(root=tmp_path), a_trial_with(())
    Writer(layout).trial(0, one)
    path = layout.trial(0, "train", one.trajectory.trial.key)
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["artifacts"]), path)
    reader = Reader(layout)
    assert reader.row(0, "train", path.stem, ("task", "artifacts")) == {"task": "t", "artifacts": []}
    back = reader.trial(0, one.trajectory.trial)
    assert back is not None and back.trajectory.patch == one.trajectory.patch
