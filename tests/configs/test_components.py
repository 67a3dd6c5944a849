"""Every schema against the class it describes, and every option of every group: composes, validates and builds."""

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from engine.config.assemble import assemble
from engine.config.build import build
from engine.config.compose import compose
from engine.config.schemas import TREE, load_registry
from engine.config.validate import problems

REGISTRY = load_registry()
GROUPS = sorted(folder.name for folder in TREE.configs.iterdir() if folder.is_dir())
OPTIONS = [(group, file.stem) for group in GROUPS for file in sorted((TREE.configs / group).glob("*.yaml"))]
REQUIRED = {
    ("model", "qwen3_5_35b_a3b"): ["model.path=/models/qwen"],
    ("tasks", "harbor"): ["tasks.path=/tasks"],
    ("tasks", "rows"): ["tasks.path=/rows", "tasks.checkouts=/clones"],
    ("job", "convert"): ["job.path=/rows", "job.to=tasks.parquet"],
    ("sandbox", "kubernetes"): ["sandbox.registry=registry.example/lego", "sandbox.gateway.host=192.0.2.1"],
    ("sandbox", "podman_pool"): ["sandbox.hosts=[{name: a, address: 'unix:///a', capacity: null, unencrypted: false}]"],
    ("tasks", "selected"): ["tasks.counts=/counts.json"],
    ("scale", "node"): ["model.path=/models/qwen", "tasks.path=/tasks"],
    ("scale", "paper"): ["model.path=/models/qwen", "tasks.path=/tasks"],
}
"""What only the user can know, for the options that leave it open (`???`)."""
APART = {
    ("inference", "scripted"): ["job=prepare"],
    ("inference", "cheats"): ["job=prepare"],
    ("schedule", "paper"): ["job=show"],
    ("scale", "paper"): ["job=show"],
    ("tasks", "harbor"): ["model=tiny_qwen3_moe"],
    ("tasks", "release_pairs"): ["model=tiny_qwen3_moe"],
    ("tasks", "rows"): ["model=tiny_qwen3_moe"],
    ("schedule", "node"): ["job=show"],
    ("model", "smollm2_135m"): [
        "proxy=short",
        "harness=mini_swe_agent",
        "harnesses.mini_swe_agent.native_tool_calling=false",
    ],
    ("proxy", "paper"): ["model=qwen3_5_35b_a3b", "model.path=/models/qwen"],
}
"""What an option needs beside it: the rules that span groups hold for whole configurations."""


def test_the_groups_are_those_of_the_design() -> None:
    expected = (
        "algorithm compute defense experiment harness inference job model observe proxy routing_replay sandbox scale "
        "schedule tasks train verify"
    )
    assert " ".join(GROUPS) == expected


@pytest.mark.parametrize("target", sorted(REGISTRY.components))
def test_constructor_takes_what_its_schema_describes(target: str) -> None:
    schema = REGISTRY.components[target]
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    described = [key for key in schema["properties"] if key != "_target_"]
    assert sorted(parameters) == sorted(described)
    assert {parameter.kind for parameter in parameters.values()} <= {inspect.Parameter.KEYWORD_ONLY}
    assert {parameter.default for parameter in parameters.values()} <= {inspect.Parameter.empty}


@pytest.mark.parametrize("target", sorted(REGISTRY.components))
def test_schema_is_closed_and_described(target: str) -> None:
    schema = REGISTRY.components[target]
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert sorted(schema["required"]) == sorted(schema["properties"])
    assert schema["title"]
    assert schema["description"]
    _check_properties(schema, target)


def test_the_run_schema_is_closed_and_described() -> None:
    Draft202012Validator.check_schema(REGISTRY.run)
    assert REGISTRY.run["additionalProperties"] is False
    assert sorted(REGISTRY.run["required"]) == sorted(REGISTRY.run["properties"])
    _check_properties(REGISTRY.run, "run")


def _check_properties(schema: dict[str, Any], where: str) -> None:
    for key, inner in schema["properties"].items():
        if key == "_target_":
            continue
        assert inner.get("description"), f"{where}.{key} has no description"
        assert {"type", "enum", "const", "x-component"} & set(inner), f"{where}.{key} has no type"
        if inner.get("type") == "object":
            assert "additionalProperties" in inner, f"{where}.{key} does not say what else it takes"
        if "properties" in inner:
            _check_properties(inner, f"{where}.{key}")


def test_every_role_that_a_slot_takes_can_be_filled() -> None:
    schemas = [REGISTRY.run, *REGISTRY.components.values()]
    wanted = {role for schema in schemas for role in _slots(schema)}
    assert wanted == set(REGISTRY.roles())


def _slots(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("x-component"), str):
            yield schema["x-component"]
        for child in schema.values():
            yield from _slots(child)


def test_every_schema_file_is_either_a_component_or_a_record() -> None:
    for file in TREE.schemas.rglob("*.json"):
        schema = json.loads(file.read_text())
        relative = file.relative_to(TREE.schemas)
        assert schema["$id"] == str(relative.with_suffix("")), relative
        if relative.parts[0] not in ("records", "run.json"):
            assert schema["properties"]["_target_"]["const"] in REGISTRY.components, relative


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option_composes_validates_and_builds(group: str, option: str) -> None:
    chosen = [f"{group}={option}", *REQUIRED.get((group, option), []), *APART.get((group, option), [])]
    built = assemble(compose(chosen))
    assert built.directory.parent == Path("runs")


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option_says_what_it_is_for(group: str, option: str) -> None:
    comments = [line for line in _lines(group, option) if line.startswith("# ") and not line.startswith("# @package")]
    assert comments
    assert len(comments[0]) > 20


def _lines(group: str, option: str) -> list[str]:
    return (TREE.configs / group / f"{option}.yaml").read_text().splitlines()


@pytest.mark.parametrize("group", ["scale", "experiment"])
def test_scales_and_experiments_choose_options_and_hold_no_values(group: str) -> None:
    for file in (TREE.configs / group).glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        assert set(content) == {"defaults"}, file
        chosen = [key for entry in content["defaults"] for key in entry]
        assert all(key.startswith("override /") for key in chosen), file
        if group == "experiment":
            assert "override /model" not in chosen, "a scale chooses the model"


@pytest.mark.parametrize("harness", [option for group, option in OPTIONS if group == "harness"])
def test_every_harness_has_an_experiment_that_names_its_runs(harness: str) -> None:
    """A run's directory bears its experiment's name, and must not bear another harness's."""
    config = compose([f"experiment={harness}_gspo"]).config
    assert list(config["harnesses"]) == [harness]
    others = compose(["experiment=openhands_gspo", f"harness={harness}"]).config
    assert {**config, "experiment": ""} == {**others, "experiment": ""}


@pytest.mark.parametrize("experiment", [option for group, option in OPTIONS if group == "experiment"])
@pytest.mark.parametrize("scale", [option for group, option in OPTIONS if group == "scale"])
def test_every_experiment_composes_at_every_scale(experiment: str, scale: str) -> None:
    defaults = yaml.safe_load((TREE.configs / f"experiment/{experiment}.yaml").read_text())["defaults"]
    chosen = [key.removeprefix("override /") for entry in defaults for key in entry]
    needed = [key for key in REQUIRED.get(("scale", scale), []) if key.partition(".")[0] not in chosen]
    composed = compose([f"experiment={experiment}", f"scale={scale}", *needed])
    assert problems(composed, REGISTRY) == []
    assert set(build(composed.config, REGISTRY)) == set(REGISTRY.run["properties"])


def test_missing_values_of_a_scale_are_all_named() -> None:
    lines = [str(error) for error in problems(compose(["scale=paper"]), REGISTRY)]
    assert [line.partition(":")[0] for line in lines] == ["model.path='???'", "tasks.path='???'"]
