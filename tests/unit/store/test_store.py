"""A run directory keeps a trial exactly, and a half-written file is no file."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from power_cut import Disk, present
from record_pieces import a_task, a_trial

from engine.core.errors import AlignmentError, RunError
from engine.core.records import (
    Exchange,
    FileChange,
    Finding,
    Patch,
    Recomputed,
    Scored,
    Segment,
    StepRecord,
    Termination,
    TestResult,
    Trajectory,
    TrialKey,
    Verdict,
)
from engine.core.whole import write_whole
from engine.store.codec import to_row
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.schema import record_schema
from engine.store.state import StateFile
from engine.store.writer import Writer


def a_scored(folder: Path, *, routed: bool = True, kept: bool = True) -> Scored:
    rng = np.random.default_rng(0)
    trial = a_trial(a_task(folder), run="r", sample=1, policy_version=3, seed=7)
    exchange = Exchange(
        id="x0",
        parent=None,
        kind="policy",
        protocol="openai_chat",
        request='{"a": "\\u0000 é"}',
        response="{}",
        prompt_ids=np.array([1, 2, 3], np.int32),
        prompt_length=3,
        sampled_ids=np.array([4, 5], np.int32),
        logprobs=np.array([-0.1, -1e-8], np.float32),
        policy_versions=np.array([3, 3], np.int32),
        routed_experts=None,
        routed_start=0,
        finish_reason="stop",
        error="",
        started_s=1.5,
        queued_s=0.0,
        generate_s=0.25,
        cached_tokens=0,
    )
    segment = Segment(
        exchanges=("x0",),
        token_ids=np.array([1, 2, 3, 4, 5], np.int32),
        target=np.array([False, False, False, True, True]),
        logprobs=np.array([0, 0, 0, -0.1, -1e-8], np.float32),
        policy_versions=np.array([-1, -1, -1, 3, 3], np.int32),
        routed_experts=rng.integers(0, 8, (4, 2, 2), dtype=np.uint8) if routed else None,
    )
    change = FileChange(path="a.py", before=b"\xff\x00old", after=None)
    trajectory = Trajectory(
        trial=trial,
        exchanges=(exchange,),
        segments=(segment,),
        termination=Termination.AGENT_COMPLETED if kept else Termination.SETUP_FAILED,
        reason="done",
        timings={"agent": 1.25},
        patch=Patch(changes=(change,), diff="--- a.py\n"),
        findings=(Finding(stage="d", phase="extract", detail="saw", paths=("x",)),),
    )
    verdict = Verdict(
        reward=1.0,
        resolved=True,
        tests=(TestResult(id="t é", kind="fail_to_pass", outcome="passed", ok=True),),
        evidence="1 passed",
        findings=(),
        grade_s=0.5,
    )
    return Scored(trajectory=trajectory, verdict=verdict if kept else None)


def same(left: object, right: object) -> None:
    """Deep equality of records with arrays, dtype included."""
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, tuple):
        assert isinstance(right, tuple)
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            same(a, b)
    else:
        assert left == right


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_trial_comes_back_exactly(tmp_path: Path, routed: bool, kept: bool) -> None:
    layout = Layout(root=tmp_path / "run")
    scored = a_scored(tmp_path, routed=routed, kept=kept)
    Writer(layout).trial(0, scored)
    back = Reader(layout).trial(0, scored.trajectory.trial)
    assert back is not None
    same(scored, back)


def test_a_trial_of_before_findings_told_whether_they_acted_is_read(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    scored = a_scored(tmp_path, routed=False)
    row = to_row(scored)
    for finding in row["findings"]:
        del finding["acted"]
    texts = [(name, pa.string()) for name in ("stage", "phase", "detail")]
    kind = pa.struct([*texts, ("paths", pa.list_(pa.string()))])
    schema = record_schema("trial")
    index = schema.get_field_index("findings")
    old = schema.set(index, pa.field("findings", pa.list_(kind)))
    path = layout.trial(0, "train", scored.trajectory.trial.key)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row], schema=old), path)
    back = Reader(layout).trial(0, scored.trajectory.trial)
    assert back is not None
    assert back.trajectory.findings == (dataclasses.replace(scored.trajectory.findings[0], acted=True),)


def test_another_attempt_is_another_trial(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    scored = a_scored(tmp_path)
    Writer(layout).trial(0, scored)
    trial = scored.trajectory.trial
    other = dataclasses.replace(trial, key=dataclasses.replace(trial.key, attempt=1))
    assert Reader(layout).trial(0, other) is None


def test_damaged_routing_is_refused(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    scored = a_scored(tmp_path)
    Writer(layout).trial(0, scored)
    blob = layout.routing(0, "train", scored.trajectory.trial.key)
    np.savez(blob.with_suffix(""), segment0=np.zeros((3, 2, 2), np.uint8))
    with pytest.raises(AlignmentError, match="3 rows for a segment of 5 tokens"):
        Reader(layout).trial(0, scored.trajectory.trial)


def test_routing_is_forgotten_up_to_a_step_with_that_of_retried_attempts(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    writer = Writer(layout)
    writer.forget_routing(0)
    scored = a_scored(tmp_path)
    trial = scored.trajectory.trial
    for step, attempt, split in (
        (0, 0, "train"),
        (1, 0, "train"),
        (1, 1, "train"),
        (1, 0, "validation"),
        (2, 0, "train"),
    ):
        key = dataclasses.replace(trial.key, attempt=attempt)
        moved = dataclasses.replace(scored.trajectory, trial=dataclasses.replace(trial, key=key, split=split))
        writer.trial(step, dataclasses.replace(scored, trajectory=moved))
    writer.forget_routing(1)
    assert [path.parent.name for path in tmp_path.glob("routing/*/*")] == ["step=000002"]
    assert len(list(tmp_path.glob("*/step=*/*.parquet"))) == 5


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"garbage" * 99])
@pytest.mark.parametrize("what", ["trial", "routing"])
def test_a_damaged_trial_is_named_with_the_way_out(tmp_path: Path, what: str, damage: bytes) -> None:
    layout = Layout(root=tmp_path)
    scored = a_scored(tmp_path)
    Writer(layout).trial(0, scored)
    trial = scored.trajectory.trial
    file = layout.trial(0, "train", trial.key)
    (file if what == "trial" else layout.routing(0, "train", trial.key)).write_bytes(damage)
    with pytest.raises(
        RunError, match=r"is damaged .*; delete it and the same command samples that trial again"
    ) as told:
        Reader(layout).trial(0, trial)
    assert str(told.value).startswith(str(file))
    assert "\n" not in str(told.value)
    file.unlink()
    assert Reader(layout).trial(0, trial) is None


def test_what_came_of_weights_that_no_checkpoint_holds_is_forgotten(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    writer = Writer(layout)
    for step in range(4):
        writer.step(StepRecord(step=step, policy_version=step + 1, metrics={}))
        writer.alert(step, "correlation", {})
        for split in ("trajectories", "validation"):
            (tmp_path / split / f"step={step:06d}").mkdir(parents=True)
    (tmp_path / "validation" / "step=notes").mkdir()
    writer.forget_beyond(2)
    assert [record.step for record in Reader(layout).steps()] == [0, 1]
    assert [alert["step"] for alert in Reader(layout).alerts()] == [0, 1]
    assert sorted(path.name for path in (tmp_path / "trajectories").iterdir()) == [f"step=00000{n}" for n in range(3)]
    assert len(list((tmp_path / "validation").iterdir())) == 4


def test_a_trained_trial_whose_checkpoint_is_gone_is_sampled_again(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    for routed in (True, False):
        scored = a_scored(tmp_path, routed=routed)
        Writer(layout).trial(0, scored)
        Writer(layout).forget_routing(0)
        assert (Reader(layout).trial(0, scored.trajectory.trial) is None) is routed


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"phase": "finished"}', "\x00"])
def test_a_damaged_state_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    layout = Layout(root=tmp_path)
    layout.state.write_text(text)
    with pytest.raises(RunError, match=r"state\.json is damaged .*; delete it, no trial or weight depends on it"):
        Reader(layout).state()
    with pytest.raises(RunError, match=r"state\.json is damaged"):
        StateFile(layout)


def test_a_damaged_step_is_named(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    Writer(layout).step(StepRecord(step=0, policy_version=1, metrics={}))
    layout.step(0).write_bytes(b"")
    with pytest.raises(RunError, match=r"step=000000\.parquet is damaged"):
        Reader(layout).steps()


def test_rows_read_only_what_is_asked_for(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    Writer(layout).trial(0, a_scored(tmp_path))
    (row,) = Reader(layout).rows(0, "train", ("excluded", "timings"))
    assert row == {"excluded": False, "timings": [("agent", 1.25)]}


def test_what_the_trainer_recomputed_is_read_by_trial(tmp_path: Path) -> None:
    """Below a folder that pyarrow would take for a partition, as those of a sweep are named."""
    layout = Layout(root=tmp_path / "trial=x" / "r")
    writer, reader = Writer(layout), Reader(layout)
    made = [some_recomputed(sample, segment) for sample in (0, 1) for segment in (1, 0)]
    assert reader.recomputed(4, str(made[0].trial)) is None
    writer.recomputed(4, made)
    writer.recomputed(4, made)  # the step was trained again after a restart
    found = reader.recomputed(4, str(made[3].trial))
    assert found is not None
    assert [row["segment"] for row in found] == [0, 1]
    assert found[0] == {
        "trial": "e0-demo-s1-a0",
        "segment": 0,
        "policy_version": 4,
        "advantage": -0.25,
        "logprobs": made[3].logprobs.tolist(),
    }
    assert reader.recomputed(4, "e0-demo-s2-a0") is None
    layout.recomputed(4).write_bytes(layout.recomputed(4).read_bytes()[:-9])
    with pytest.raises(RunError, match=r"step=000004\.parquet is damaged .*; the run does not depend on it"):
        reader.recomputed(4, "e0-demo-s1-a0")


def some_recomputed(sample: int, segment: int) -> Recomputed:
    return Recomputed(
        trial=TrialKey(run="r", epoch=0, task="demo", sample=sample, attempt=0),
        segment=segment,
        policy_version=4,
        advantage=-0.25,
        logprobs=np.array([-1e-8, -2.5 - sample], np.float32),
    )


def test_the_tokeniser_is_kept_once(tmp_path: Path) -> None:
    layout, model = Layout(root=tmp_path / "r"), tmp_path / "model"
    model.mkdir()
    for contents in ("first", "another"):
        (model / "tokenizer.json").write_text(contents)
        Writer(layout).tokenizer(model)
    assert layout.tokenizer.read_text() == "first"


def test_trials_are_listed_by_step_and_read_by_name(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    reader = Reader(layout)
    assert reader.rollouts("train") == reader.trials(2, "train") == []
    for step in (10, 2):
        Writer(layout).trial(step, a_scored(tmp_path))
    (layout.rollouts("train") / "step=old").mkdir()
    (layout.trials(2, "train") / ".half.parquet.0123").touch()
    assert reader.rollouts("train") == [2, 10]
    assert reader.trials(2, "train") == ["e0-demo-s1-a0"]
    assert reader.row(2, "train", "e0-demo-s1-a0", ("reward",)) == {"reward": 1.0}


def test_configuration_and_alarms(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    reader, writer = Reader(layout), Writer(layout)
    assert (reader.config(), reader.alerts()) == (None, [])
    writer.text("config.yaml", "seed: 1\n")
    writer.alert(3, "correlation", {})
    assert (reader.config(), reader.alerts()) == ({"seed": 1}, [{"alert": "correlation", "step": 3}])
    for contents in ("[", "- 1", ""):
        layout.config.write_text(contents)
        with pytest.raises(RunError, match=r"config\.yaml is damaged"):
            reader.config()


def test_only_folders_of_versions_are_checkpoints(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    for name in ("version=000002", "version=000001", "version=old", ".version=000003.x"):
        (layout.checkpoints / name).mkdir(parents=True)
    assert Reader(layout).checkpoints() == [1, 2]


def test_a_disk_that_takes_nothing_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/x cannot be written: File exists; once it can"):
        write_whole(tmp_path / "file" / "x", b"")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_steps_and_state(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    writer, reader = Writer(layout), Reader(layout)
    assert reader.state() is None
    for step in (1, 0):
        writer.step(StepRecord(step=step, policy_version=step + 1, metrics={"reward/mean": step / 4}))
    assert [record.metrics["reward/mean"] for record in reader.steps()] == [0.0, 0.25]
    first = StateFile(layout)
    first.update("rollout", step=4)
    again = StateFile(layout)
    again.update("finished")
    state = reader.state()
    assert state is not None
    assert state["phase"] == "finished"
    assert state["started_s"] == first.state.started_s
    assert state["wall_s"] >= first.state.wall_s


def test_a_beat_writes_the_heartbeat_alone_and_only_when_it_is_due(tmp_path: Path) -> None:
    state = StateFile(Layout(root=tmp_path))
    state.update("rollout", step=4, policy_version=4)
    before = (tmp_path / "state.json").read_bytes()
    state.beat(3600.0)
    assert (tmp_path / "state.json").read_bytes() == before
    state.beat(0.0)
    old, new = json.loads(before), json.loads((tmp_path / "state.json").read_text())
    assert new["heartbeat_s"] > old["heartbeat_s"]
    assert {**new, "heartbeat_s": 0, "wall_s": 0} == {**old, "heartbeat_s": 0, "wall_s": 0}


def test_every_column_is_declared_with_a_description() -> None:
    for name in ("trial", "step", "recomputed"):
        for field in record_schema(name):
            assert field.metadata[b"description"].strip(), field.name


def test_what_a_step_keeps_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(root=tmp_path / "run")
    layout.root.mkdir()
    scored = a_scored(tmp_path)
    disk = Disk(layout.root, monkeypatch)
    writer, ledger, name = Writer(layout), Ledger(layout), ("train", str(scored.trajectory.trial.key))
    for state in ("pending", "running"):
        ledger.move(0, [name], state)  # type: ignore[list-item, arg-type]
    writer.trial(0, scored)
    assert len([path for path in disk.left() if path.startswith(("trajectories/", "routing/"))]) == 2
    ledger.move(0, [name], "finished")  # type: ignore[list-item]
    writer.recomputed(0, [some_recomputed(0, 0)])
    writer.step(StepRecord(step=0, policy_version=1, metrics={"loss": 1.0}))
    StateFile(layout).update("checkpoint")
    assert disk.left() == present(layout.root)
