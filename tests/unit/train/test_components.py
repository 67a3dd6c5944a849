"""The components of algorithm, replay and training: configured without torch, schemas and constructors alike."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
NAMES = [
    "algorithm/gspo",
    "algorithm/group_normalized",
    "routing_replay/routing_replay",
    "train/torch_trainer",
]


@pytest.mark.parametrize("name", NAMES)
def test_constructor_and_schema_take_the_same_values(name):
    schema = json.loads((ROOT / "schemas" / f"{name}.json").read_text())
    module, _, attribute = schema["properties"]["_target_"]["const"].rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), attribute)).parameters
    assert set(parameters) == set(schema["properties"]) - {"_target_"} == set(schema["required"]) - {"_target_"}
    for parameter in parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is inspect.Parameter.empty


def test_table_10_to_the_digit():
    gspo = yaml.safe_load((ROOT / "configs" / "algorithm" / "gspo.yaml").read_text())
    assert (gspo["clip_low"], gspo["clip_high"]) == (3e-4, 4e-4)
    assert gspo["kl_coefficient"] == 1e-3
    assert gspo["kl_estimator"] == "low_variance"
    assert gspo["kl_in_reward"] is False
    assert gspo["aggregation"] == "seq-mean-token-mean"
    assert gspo["importance_correction"] == "off"
    assert (gspo["advantage"]["ddof"], gspo["advantage"]["epsilon"]) == (1, 1e-6)
    train = yaml.safe_load((ROOT / "configs" / "train" / "paper.yaml").read_text())
    assert (train["learning_rate"], train["scheduler"], train["warmup_steps"]) == (1e-6, "constant", 0)
    assert (train["gradient_clip"], train["mini_batches"], train["micro_batch_rows"]) == (1.0, 1, 1)


def test_configuring_needs_no_heavy_library():
    code = (
        "import sys, engine.train.algorithm, engine.train.routing_replay, engine.train.torch_trainer, "
        "engine.samples.advantages, engine.samples.groups, engine.samples.rows, engine.samples.alignment\n"
        "print([m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
