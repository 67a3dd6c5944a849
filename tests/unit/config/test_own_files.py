"""A person's own files (`--config-dir`): what is not right in one names the file and what belongs there."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.compose import compose
from engine.config.schemas import Tree, load_registry
from engine.config.validate import problems
from engine.core.errors import ConfigErrors

AGENT = "_target_: config_pieces.Agent\n"


def told(tree: Tree, folder: Path, files: dict[str, str], *overrides: str) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    own = replace(tree, extra=(folder,))
    try:
        return [str(error) for error in problems(compose(overrides, own), load_registry(tree.schemas))]
    except ConfigErrors as errors:
        return str(errors).splitlines()


def test_each_missing_key_is_told_once_with_what_it_takes(tree: Tree, tmp_path: Path) -> None:
    assert told(tree, tmp_path, {"engine/mine.yaml": "_target_: config_pieces.FastEngine\n"}, "engine=mine") == [
        f"engine.{name}='???': missing value; write {name}: … in engine/mine.yaml, or +engine.{name}=VALUE ({what})"
        for name, what in (
            ("threads", "give an integer ≥ 1: CPU threads"),
            ("device", "give one of cpu, cuda: Where it computes"),
            ("path", "give a string: Folder of the model"),
            ("arguments", "give a mapping: Free-form engine arguments"),
        )
    ]


def test_a_missing_component_is_told_by_its_class_and_keys(tree: Tree, tmp_path: Path) -> None:
    (line,) = told(tree, tmp_path, {"sandbox/mine.yaml": "_target_: config_pieces.Box\nstages: []\n"}, "sandbox=mine")
    assert line == (
        "sandbox.limits='???': missing value; write limits: … in sandbox/mine.yaml "
        "(give {_target_: config_pieces.Limits, memory_mb: an integer ≥ 1}: Limits)"
    )


@pytest.mark.parametrize("written", ["???", "{memory_mb: 3}"])
def test_a_component_that_is_none_is_told_alike(tree: Tree, tmp_path: Path, written: str) -> None:
    text = f"_target_: config_pieces.Box\nstages: []\nlimits: {written}\n"
    (line,) = told(tree, tmp_path, {"sandbox/mine.yaml": text}, "sandbox=mine")
    assert line.startswith("sandbox.limits=")
    assert "OPTION" not in line
    assert "give {_target_: config_pieces.Limits, memory_mb: an integer ≥ 1}" in line


def test_a_missing_key_within_a_list_is_told_by_its_file_alone(tree: Tree, tmp_path: Path) -> None:
    text = "_target_: config_pieces.Box\nlimits: {_target_: config_pieces.Limits, memory_mb: 1}\n"
    text += "stages: [{_target_: config_pieces.Stage}]\n"
    (line,) = told(tree, tmp_path, {"sandbox/mine.yaml": text}, "sandbox=mine")
    assert line == (
        "sandbox.stages[0].strict='???': missing value; write strict: … in sandbox/mine.yaml "
        "(give true or false: Fail closed)"
    )
