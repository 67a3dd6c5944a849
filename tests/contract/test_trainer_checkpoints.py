"""What every trainer keeps and takes up again: weights, checkpoints, the reference, a stop in mid-step."""

import dataclasses
import hashlib
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_cases import (
    gspo,
    pair,
    started,
    trainer,
)

from engine.core.errors import Interrupted, RunError
from engine.train.routing_replay import RoutingReplay


def test_export_is_one_file_that_transformers_loads_to_the_same_model(moe, tmp_path):
    made = started(moe, replay=True)
    made.step(pair(0))
    path = tmp_path / "weights" / "v1.safetensors"
    made.export(path)
    assert [p.name for p in path.parent.iterdir()] == ["v1.safetensors"]
    names = set(load_file(path))
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in names
    assert "model.layers.1.mlp.gate.weight" in names
    assert names == set(load_file(moe.path / "model.safetensors"))
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "config.json").write_text((moe.path / "config.json").read_text())
    path.rename(folder / "model.safetensors")
    ids = pair().rows[0].token_ids
    again = started(dataclasses.replace(moe, path=folder), replay=True)
    assert np.array_equal(again.score(ids), made.score(ids))


def test_two_steps_are_one_step_a_checkpoint_and_one_step(moe, tmp_path):
    changes = {"mini_batches": 2, "warmup_steps": 3, "weight_decay": 0.1}
    straight = started(moe, replay=True, **changes)
    straight.step(pair(0))
    expected = straight.step(pair(1))
    first = started(moe, replay=True, **changes)
    first.step(pair(0))
    first.save(tmp_path / "c" / "step=0")
    second = started(moe, replay=True, **changes)
    second.load(tmp_path / "c" / "step=0")
    found = second.step(pair(1))
    for name in expected:
        if name != "old_logprobs" and not name.startswith("time/"):
            assert found[name] == expected[name], name
    for name, tensor in straight._optimizer.master.items():
        assert torch.equal(tensor, second._optimizer.master[name]), name
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step=0"]


def test_saving_again_replaces_the_folder(moe, tmp_path):
    made = started(moe, replay=True)
    made.save(tmp_path / "c")
    made.step(pair(0))
    made.save(tmp_path / "c")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    resumed = started(moe, replay=True)
    resumed.load(tmp_path / "c")
    with pytest.raises(RunError, match="step 0 is trained already"):
        resumed.step(pair(0))


def test_a_checkpoint_of_another_start_is_refused(moe, tmp_path):
    made = started(moe, replay=True)
    made.step(pair(0))
    made.save(tmp_path / "c")
    made.export(tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text((moe.path / "config.json").read_text())
    other = started(dataclasses.replace(moe, path=tmp_path / "other"), replay=True)
    before = other.score(pair().rows[0].token_ids)
    with pytest.raises(RunError, match="reference_sha256"):
        other.load(tmp_path / "c")
    assert np.array_equal(before, other.score(pair().rows[0].token_ids))


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "trainer.json"])
def test_a_broken_checkpoint_is_refused_and_changes_nothing(moe, tmp_path, name):
    made = started(moe, replay=True)
    made.step(pair(0))
    made.save(tmp_path / "c")
    file = tmp_path / "c" / name
    file.write_bytes(file.read_bytes()[:20])
    fresh = started(moe, replay=True)
    before = fresh.score(pair().rows[0].token_ids)
    with pytest.raises(RunError, match="cannot be read"):
        fresh.load(tmp_path / "c")
    assert np.array_equal(before, fresh.score(pair().rows[0].token_ids))


def test_the_reference_is_named_by_its_hash(moe):
    made = started(moe, replay=True)
    again = hashlib.sha256()
    for name in sorted(made._reference.parameters):
        tensor = made._reference.parameters[name]
        again.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        again.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    assert made.reference_sha256 == again.hexdigest()
    made.step(pair(0))
    assert made.reference_sha256 == started(moe, replay=False).reference_sha256


@pytest.mark.parametrize("rows_before", [1, 2, 4, 5])
def test_a_stop_ends_a_step_in_another_thread_at_its_next_micro_batch(moe, rows_before):
    made = started(moe, replay=True, micro_batch_rows=1)
    policy, weights = made._policy, {name: p.detach().clone() for name, p in made._policy.parameters.items()}
    began, go_on, raised, computed = threading.Event(), threading.Event(), [], []

    def logprobs(*given, **how):
        computed.append(1)
        if len(computed) == rows_before:
            began.set()
            assert go_on.wait(60)
        return whole(*given, **how)

    def step():
        try:
            made.step(pair())
        except BaseException as error:
            raised.append(type(error))

    whole, policy.logprobs = policy.logprobs, logprobs
    thread = threading.Thread(target=step)
    thread.start()
    assert began.wait(60)
    made.stop()  # returns at once
    go_on.set()
    thread.join(60)
    assert (raised, len(computed)) == ([Interrupted], rows_before)
    for name, parameter in policy.parameters.items():
        assert torch.equal(parameter, weights[name])


def test_runs_in_a_worker_thread_and_stops_twice(moe):
    made = trainer()
    results: list[float] = []

    def work() -> None:
        made.start(moe, gspo(), RoutingReplay(enabled=True), 0)
        results.append(made.step(pair(0))["train/grad_norm"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0] > 0
    made.stop()
    made.stop()
    with pytest.raises(RunError, match="not started"):
        made.score(pair().rows[0].token_ids)
