"""Validated configuration → objects: `_target_` names the class, its keys are the keyword arguments.

Invariant: only classes that a schema admits are imported, and only after validation. Refuses a class that cannot be
imported or that does not take what its schema describes.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from engine.config.schemas import Registry
from engine.core.errors import ConfigError


def build(config: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """One object per top-level key of a validated configuration; plain values stay as they are."""
    return {key: _instantiate(value, registry, key) for key, value in config.items()}


def _instantiate(value: Any, registry: Registry, key: str) -> Any:
    if isinstance(value, Mapping):
        children = {name: _instantiate(child, registry, f"{key}.{name}") for name, child in value.items()}
        if "_target_" not in value:
            return children
        constructor = locate(value["_target_"], registry, key)
        children.pop("_target_")
        try:
            return constructor(**children)
        except TypeError as error:
            way_out = "mend the class or its schema, they must name the same keys"
            raise ConfigError(f"{key}._target_", value["_target_"], f"cannot be built ({error})", way_out) from error
    if isinstance(value, list):
        return [_instantiate(child, registry, f"{key}[{index}]") for index, child in enumerate(value)]
    return value


def locate(target: str, registry: Registry, key: str) -> Any:
    """The class that `target` names. Raises ConfigError for one that no schema admits or that cannot be imported."""
    if target not in registry.components:
        raise ConfigError(f"{key}._target_", target, "not an admitted component", "use one that has a schema")
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        way_out = "install what it needs, or choose another option"
        raise ConfigError(f"{key}._target_", target, f"cannot be imported ({error})", way_out) from error
