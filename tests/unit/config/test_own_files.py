"""A person's own files (`--config-dir`): what is not right in one names the file and what belongs there."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from engine.config.command import run_command
from engine.config.compose import compose
from engine.config.schemas import Tree, load_registry
from engine.config.sweep import Program
from engine.config.validate import problems
from engine.core.errors import ConfigError, ConfigErrors

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


PLACED = "let its first line be `# @package {}`, alone"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("", "has no package line, so its keys lie below `harness`, which nothing reads"),
        (
            "# Mine.\n# @package harnesses.mine\n",
            "has no package line, so its keys lie below `harness`, which nothing reads",
        ),
        ("# @package harness.mine\n", "puts its keys below `harness.mine`, which nothing reads"),
    ],
)
@pytest.mark.parametrize("choice", ["harness=mine", "harness=[agent,mine]"])
def test_a_harness_whose_package_line_is_wrong(tree: Tree, tmp_path: Path, choice: str, head: str, why: str) -> None:
    lines = told(tree, tmp_path, {"harness/mine.yaml": f"{head}{AGENT}max_turns: 3\n"}, choice)
    file = tmp_path / "harness/mine.yaml"
    assert lines == [f"harness='mine': {file} {why}; {PLACED.format('harnesses.mine')}"]


def test_a_file_whose_name_is_no_key_is_told_one_that_is(tree: Tree, tmp_path: Path) -> None:
    (line,) = told(tree, tmp_path, {"harness/my-Agent.yaml": f"{AGENT}max_turns: 3\n"}, "harness=my-Agent")
    assert line.endswith(PLACED.format("harnesses.my_agent"))


@pytest.mark.parametrize("text", ["seed: 3\n", "defaults:\n  - override /engine: large\n"])
def test_an_experiment_without_its_package_line(tree: Tree, tmp_path: Path, text: str) -> None:
    lines = told(tree, tmp_path, {"experiment/mine.yaml": text}, "experiment=mine")
    file = tmp_path / "experiment/mine.yaml"
    why = "has no package line, so its keys lie below `experiment`, which nothing reads"
    assert lines == [f"experiment='mine': {file} {why}; {PLACED.format('_global_')}"]


def test_a_harness_that_an_own_experiment_chooses(tree: Tree, tmp_path: Path) -> None:
    chosen = "# @package _global_\ndefaults:\n  - override /harness: mine\n"
    files = {"experiment/mine.yaml": chosen, "harness/mine.yaml": f"{AGENT}max_turns: 3\n"}
    (line,) = told(tree, tmp_path, files, "experiment=mine")
    assert line.startswith("harness='mine': ")


def test_two_files_for_one_harness_and_a_group_without_packages_are_right(tree: Tree, tmp_path: Path) -> None:
    files = {
        "harness/agent_long.yaml": f"\n# @package harnesses.agent\n{AGENT}max_turns: 300\n",
        "engine/mine.yaml": "_target_: config_pieces.FastEngine\nthreads: 1\ndevice: cpu\npath: x\narguments: {}\n",
    }
    assert told(tree, tmp_path, files, "harness=agent_long", "engine=mine") == []


# ---------------------------------------------------------------- the folder itself


def refused(tree: Tree, *arguments: str) -> str:
    def program(composed: object) -> int:
        raise AssertionError(composed)

    with pytest.raises(ConfigError) as caught:
        run_command([*arguments, "seed=3"], cast("Program", program), tree)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nowhere", "there is no such folder; name one that holds a folder a group, as harness/NAME.yaml"),
        ("file", "is no folder; name one that holds a folder a group, as harness/NAME.yaml"),
        ("empty", "holds no folder of a group; put the file at {}/harness/NAME.yaml, for example"),
        ("own/harness", "is the folder of a group itself; name the one above it, {}"),
    ],
)
@pytest.mark.parametrize("flag", ["--config-dir", "-cd"])
def test_a_folder_of_own_files_that_holds_none(tree: Tree, tmp_path: Path, place: str, problem: str, flag: str) -> None:
    (tmp_path / "own/harness").mkdir(parents=True)
    (tmp_path / "own/harness/mine.yaml").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    folder = tmp_path / place
    other = folder if place == "empty" else folder.parent
    assert refused(tree, flag, str(folder)) == f"--config-dir='{folder}': {problem.format(other)}"


def test_a_file_with_the_name_of_one_of_the_projects_own_is_told(tree: Tree, tmp_path: Path) -> None:
    files = {"harness/other.yaml": (tree.configs / "harness" / "other.yaml").read_text()}
    (line,) = told(tree, tmp_path, files, "harness=other")
    assert line.startswith("harness='other': ")
    assert "harness/other.yaml is not read: the project has a harness/other of its own; give your file another" in line
