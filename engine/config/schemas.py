"""The JSON schemas of every instantiable component: what may be set, and the allow-list of what may be instantiated.

A component schema names its class by `properties._target_.const` and its role by `x-role`; a property that holds a
nested component says which role it takes by `x-component`; a map of environment variables, whose credentials are never
written, says so by `x-environment: true`. Packages outside this repository add theirs by an entry point of group
`lego_rl.schemas` that names a package with `*.json` files.

Invariant: a class that no schema names cannot be reached from a configuration. Refuses two schemas for one class.
"""

import importlib.resources
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from engine.config.composed import Written
from engine.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: `configs/` and `schemas/` lie beside the package `engine/`."""
CONFIG_NAME = "run"
"""Of the root configuration and its schema."""
ENTRY_POINTS = "lego_rl.schemas"

Schema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Where configuration files and their schemas lie."""

    configs: Path
    """Holds `run.yaml` and one folder a group."""
    schemas: Path
    """Holds `run.json` and one folder a group."""
    extra: tuple[Path, ...] = ()
    """Folders that are searched after `configs`: a person's own options (`--config-dir`)."""
    written: Written | None = None
    """The run whose configuration `configs` holds; `extra` then begins with this project's own."""


TREE = Tree(configs=ROOT / "configs", schemas=ROOT / "schemas")


@dataclass(frozen=True, kw_only=True)
class Registry:
    """All schemas, by the class they admit."""

    run: Schema
    """Schema of the whole configuration: seed, run, and one slot a group."""
    components: Mapping[str, Schema]
    """`_target_` → schema."""

    def roles(self) -> dict[str, list[str]]:
        """Role → targets that may fill it, in alphabetical order."""
        found: dict[str, list[str]] = {}
        for target in sorted(self.components):
            found.setdefault(self.components[target]["x-role"], []).append(target)
        return found


def slot_role(schema: Schema) -> str | None:
    """The role that a property takes when it holds one component, else None."""
    return schema.get("x-component")


def held_role(schema: Schema) -> str | None:
    """As `slot_role`, also for a map of components."""
    rest = schema.get("additionalProperties")
    return slot_role(schema) or (slot_role(rest) if isinstance(rest, Mapping) else None)


@cache
def load_registry(root: Path = TREE.schemas) -> Registry:
    """Read `root` and what other packages add. Schemas of stored records (`records/`) are no components."""
    run = json.loads((root / f"{CONFIG_NAME}.json").read_text())
    files = (path for path in sorted(root.rglob("*.json")) if path.parent != root)
    own = ((str(path.relative_to(root)), json.loads(path.read_text())) for path in files)
    others = _from_packages(entry_points(group=ENTRY_POINTS))
    return Registry(run=run, components=_components([*own, *others]))


def _from_packages(points: Iterable[EntryPoint]) -> Iterator[tuple[str, Schema]]:
    for point in points:
        try:
            folder = importlib.resources.files(point.value)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{ENTRY_POINTS}.{point.name}", point.value, f"cannot be imported ({error})", "uninstall or mend it"
            ) from error
        for file in _json_files(folder):
            yield f"{point.value}:{file.name}", json.loads(file.read_text())


def _json_files(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _json_files(entry)
        elif entry.name.endswith(".json"):
            yield entry


def _components(schemas: Iterable[tuple[str, Schema]]) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    origin: dict[str, str] = {}
    for name, schema in schemas:
        target = schema.get("properties", {}).get("_target_", {}).get("const")
        if target is None or "x-role" not in schema:
            continue
        if target in found:
            raise ConfigError(
                "_target_", target, f"described by both {origin[target]} and {name}", "keep one schema for a class"
            )
        found[target], origin[target] = schema, name
    return found
