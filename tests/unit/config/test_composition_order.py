"""Groups < scale < experiment < command line, and harnesses by name."""

import pytest

from engine.config.compose import compose
from engine.config.schemas import Tree


@pytest.mark.parametrize(
    ("overrides", "engine", "harnesses"),
    [
        ([], "small", ["agent"]),
        (["scale=node", "engine.path=/m"], "/m", ["other"]),
        (["scale=node", "experiment=exotic"], "exotic", ["other"]),
        (["experiment=exotic", "scale=node"], "exotic", ["other"]),
        (["scale=node", "experiment=exotic", "engine=small"], "small", ["other"]),
        (["engine=small", "experiment=exotic", "harness=agent", "scale=node"], "small", ["agent"]),
        (["harness=[agent,other]"], "small", ["agent", "other"]),
    ],
)
def test_later_chooser_wins(tree: Tree, overrides: list[str], engine: str, harnesses: list[str]) -> None:
    config = compose(overrides, tree).config
    assert config["engine"]["path"] == engine
    assert list(config["harnesses"]) == harnesses


def test_result_is_plain_and_resolved(tree: Tree) -> None:
    composed = compose(["engine.threads=3", "engine.path='a b=c'"], tree)
    assert type(composed.config["engine"]) is dict
    assert composed.config["sandbox"]["limits"]["memory_mb"] == 3
    assert composed.config["engine"]["path"] == "a b=c"
    assert composed.config["experiment"] == "plain"
    assert "hydra" not in composed.config
    assert composed.command_line == ("engine.threads=3", "engine.path='a b=c'")
    assert composed.interpolated["sandbox.limits.memory_mb"] == "${engine.threads}"


def test_origin_of_each_value(tree: Tree) -> None:
    origins = compose(["scale=node", "engine.path=/m", "+engine.arguments.block=16", "seed=3"], tree).origins()
    assert origins["engine.threads"] == "engine/large.yaml (scale=node)"
    assert origins["engine.path"] == "command line"
    assert origins["engine.arguments.cache"] == "engine/large.yaml (scale=node)"
    assert origins["engine.arguments.block"] == "command line"
    assert origins["harnesses.other.max_turns"] == "harness/other.yaml (scale=node)"
    assert origins["sandbox.limits.memory_mb"] == "sandbox/box.yaml → ${engine.threads}"
    assert origins["seed"] == "command line"
    assert origins["run.root"] == "run.yaml"


def test_origin_when_the_experiment_or_the_command_line_chose(tree: Tree) -> None:
    assert compose(["experiment=exotic"], tree).origins()["engine.path"] == "engine/exotic.yaml (experiment=exotic)"
    chosen = compose(["experiment=exotic", "engine=small"], tree).origins()["engine.path"]
    assert chosen == "engine/small.yaml (command line)"
