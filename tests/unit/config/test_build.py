"""Validated configuration to objects, and only to those that a schema admits."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from config_pieces import Agent, Box, FastEngine, Limits, Stage

from engine.config import schemas
from engine.config.build import build
from engine.config.compose import compose
from engine.config.schemas import Registry, Tree, load_registry
from engine.core.errors import ConfigError


def test_nested_components_are_built(tree: Tree, registry: Registry) -> None:
    objects = build(compose(["harness=[agent,other]", "+engine.arguments.block=16"], tree).config, registry)
    assert objects["engine"] == FastEngine(threads=1, device="cpu", path="small", arguments={"block": 16})
    assert objects["sandbox"] == Box(limits=Limits(memory_mb=1), stages=[Stage(strict=True)])
    assert objects["harnesses"] == {"agent": Agent(max_turns=8), "other": Agent(max_turns=8)}
    assert objects["run"] == {"root": "runs"}


def test_a_class_without_a_schema_is_not_even_imported(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="not an admitted component"):
        build({"engine": {"_target_": "a_module_that_does_not_exist.Thing"}}, registry)


def test_a_component_that_cannot_be_imported(registry: Registry) -> None:
    target = "a_module_that_does_not_exist.Thing"
    admitted = replace(registry, components={target: {"x-role": "engine"}})
    with pytest.raises(ConfigError) as caught:
        build({"engine": {"_target_": target}}, admitted)
    assert str(caught.value) == (
        "engine._target_='a_module_that_does_not_exist.Thing': cannot be imported "
        "(No module named 'a_module_that_does_not_exist'); install what it needs, or choose another option"
    )


def test_a_class_that_disagrees_with_its_schema(registry: Registry) -> None:
    config = {"harnesses": {"agent": {"_target_": "config_pieces.Agent", "turns": 8}}}
    with pytest.raises(ConfigError, match=r"harnesses\.agent\._target_.*cannot be built.*mend the class or its schema"):
        build(config, registry)


def test_another_package_adds_components(tmp_path, monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    package = tmp_path / "guest_schemas"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "engine" / "guest.json").write_text(
        '{"x-role": "engine", "properties": {"_target_": {"const": "guest.Engine"}}}'
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint(name="guest", value="guest_schemas", group=schemas.ENTRY_POINTS)
    monkeypatch.setattr(schemas, "entry_points", lambda *, group: [point] if group == "lego_rl.schemas" else [])
    registry = load_registry.__wrapped__(tree.schemas)
    assert registry.roles()["engine"] == ["config_pieces.FastEngine", "guest.Engine"]


def test_another_package_that_is_broken_is_named(monkeypatch: pytest.MonkeyPatch, tree: Tree) -> None:
    point = EntryPoint(name="guest", value="no_such_guest", group=schemas.ENTRY_POINTS)
    monkeypatch.setattr(schemas, "entry_points", lambda *, group: [point])
    with pytest.raises(ConfigError, match=r"lego_rl\.schemas\.guest='no_such_guest': cannot be imported"):
        load_registry.__wrapped__(tree.schemas)


def test_two_schemas_for_one_class_are_refused(tmp_path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "engine").mkdir()
    for name in ("a", "b"):
        (tmp_path / "engine" / f"{name}.json").write_text(
            '{"x-role": "engine", "properties": {"_target_": {"const": "x.Y"}}}'
        )
    with pytest.raises(ConfigError, match=r"described by both engine/a\.json and engine/b\.json"):
        load_registry.__wrapped__(tmp_path)
