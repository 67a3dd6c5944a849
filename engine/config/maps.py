"""A map that an override gives whole, key by key: what is there, what is new to a free-form map, what is unknown.

Hydra merges a map into what is there, and refuses it whole where one key is new. A key that reads as a number is a
number in a map and a text in a dotted key; `text_keys` makes them one. Refuses a map that has both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from engine.config.parsing import quoted, spelt
from engine.config.schemas import Registry, slot_role
from engine.config.validate import kind, schema_of
from engine.core.credentials import without_rest
from engine.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of one override that gives a map."""

    there: list[str] = field(default_factory=list)
    """Overrides of keys that are in place."""
    new: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Free-form map → what it does not have yet."""
    unknown: list[tuple[str, Any]] = field(default_factory=list)
    """Dotted key and value."""

    @property
    def problem(self) -> str:
        told = []
        for name, added in self.new.items():
            verb = "is" if len(added) == 1 else "are"
            told.append(f"{', '.join(map(str, added))} {verb} not in the free-form map {name} yet")
        return ", ".join(told) or "stands there as a text, not as a number"

    @property
    def lines(self) -> list[str]:
        """Overrides that say the same of all that is not unknown."""
        return [*self.there, *(f"+{key}={spelt(added)}" for key, added in self.new.items())]

    @property
    def written(self) -> str:
        """The lines as they may be shown, for the shell."""
        shown = [line if line == without_rest(line) else f"{line.partition('=')[0]}=VALUE" for line in self.lines]
        return " ".join(map(quoted, shown))


def parts_of(key: str, given: Mapping[Any, Any], config: DictConfig, registry: Registry) -> Parts:
    """`key`: of a map that is in place in the composed `config`."""
    parts = Parts()
    there = OmegaConf.to_container(OmegaConf.select(config, key), resolve=False)
    _sort(key, given, there, plain_of(config), registry, parts)
    return parts


def plain_of(config: DictConfig) -> dict[str, Any]:
    """A composed configuration, unresolved, without Hydra's own part."""
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    return {str(name): child for name, child in container.items() if name != "hydra"}


def _sort(
    key: str, given: Mapping[Any, Any], there: Any, plain: Mapping[str, Any], registry: Registry, parts: Parts
) -> None:
    rest = (schema_of(key, plain, registry) or {}).get("additionalProperties")
    names = {str(name): name for name in there}
    for name, child in given.items():
        path = f"{key}.{name}"
        if str(name) in names:
            same = names[str(name)]
            if isinstance(child, dict) and isinstance(there[same], dict):
                _sort(path, child, there[same], plain, registry, parts)
            elif isinstance(same, str) and same.replace("-", "_").isidentifier() | same.isdigit():
                parts.there.append(f"{path}={spelt(child)}")
            else:
                parts.there.append(f"{key}={spelt({same: child})}")
        elif isinstance(rest, Mapping) and not slot_role(rest):
            parts.new.setdefault(key, {})[name] = child
        else:
            parts.unknown.append((path, child))


def text_keys(value: Any, key: str = "") -> Any:
    """The value, in which every key of a map is a text. Raises ConfigError for two that become one, and for keys that
    are neither texts nor whole numbers."""
    if isinstance(value, list):
        return [text_keys(child, f"{key}[{index}]") for index, child in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for name, child in value.items():
        if not isinstance(name, str) and type(name) is not int:
            raise ConfigError(key, name, f"a key that is no text, {kind(name)}", "write it in quotes, in a file")
        path = f"{key}.{name}" if key else str(name)
        if str(name) in found:
            raise ConfigError(path, child, "is in place already, as a number or a text", "leave out the `+`")
        found[str(name)] = text_keys(child, path)
    return found
