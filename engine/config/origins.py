"""Where each value of a composed configuration was set: which file, chosen by whom, or the command line.

Invariant: the origin named for a key is the last one that set it in composition order. Reads YAML files only.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from engine.config.composed import WRITTEN, Written
from engine.config.schemas import CONFIG_NAME

Origins = Mapping[str, str]
COMMAND_LINE = "command line"


def trace(
    with_hydra: DictConfig,
    config: DictConfig,
    loader: ConfigLoader,
    written: Written | None,
    interpolated: Mapping[str, str],
) -> dict[str, str]:
    """Dotted leaf key → `sandbox/bubblewrap.yaml (scale=laptop)`, `command line`, `… → ${interpolation}`.

    What a run wrote comes from its `config.yaml`. `interpolated`: how an interpolation is told."""
    hydra = with_hydra.hydra
    overrides = list(command_line(with_hydra))
    defaults = loader.compute_defaults_list(hydra.job.config_name, overrides, RunMode.RUN)
    folders = [Path(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    chosen = defaults.overrides.override_metadata

    origins: dict[str, str] = {}
    for default in defaults.defaults:
        path = str(default.config_path)
        if path.startswith("hydra/"):
            continue
        group, _, option = path.rpartition("/")
        by = chosen.get(default.override_key or group)
        origin = f"{path}.yaml"
        if written and (path == CONFIG_NAME or option == WRITTEN):
            origin = str(written.path)
        elif by is not None:
            origin += f" ({_chooser(by.containing_config_path)})"
        for key in _file_keys(folders, path, default.package or ""):
            origins[key] = origin
    for line in OverridesParser.create().parse_overrides(overrides):
        key = line.key_or_group
        names_a_choice = key in config and OmegaConf.is_interpolation(config, key)
        if line in defaults.config_overrides or names_a_choice:
            for leaf in (*_leaves(line.value(), key), key):
                origins[leaf] = COMMAND_LINE
    return {
        key: _with_interpolation(origins, key, interpolated.get(key, raw) if _is_interpolation(raw) else raw)
        for key, raw in _raw_leaves(config, "")
    }


def chosen_files(with_hydra: DictConfig, loader: ConfigLoader) -> list[str]:
    """`group/option` of every file that was composed."""
    name = with_hydra.hydra.job.config_name
    defaults = loader.compute_defaults_list(name, list(command_line(with_hydra)), RunMode.RUN).defaults
    return [str(default.config_path) for default in defaults]


def command_line(with_hydra: DictConfig) -> tuple[str, ...]:
    """The overrides as they were given; unresolved, since a value may be an interpolation."""
    given = OmegaConf.to_container(with_hydra.hydra.overrides.task, resolve=False)
    assert isinstance(given, list)
    return tuple(str(line) for line in given)


def _chooser(containing: str | None) -> str:
    """`experiment/openhands_gspo` → `experiment=openhands_gspo`; None is the command line."""
    if containing is None:
        return COMMAND_LINE
    group, _, option = containing.rpartition("/")
    return f"{group}={option}"


def _file_keys(folders: list[Path], path: str, package: str) -> Iterator[str]:
    for folder in folders:
        file = folder / f"{path}.yaml"
        if file.is_file():
            content = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            if isinstance(content, dict):
                content.pop("defaults", None)
                content.pop("hydra", None)
                yield from _leaves(content, package)
            return


def _leaves(value: Any, prefix: str) -> Iterator[str]:
    """Dotted keys of the leaves of a plain value; an empty mapping and a list are leaves."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix


def _raw_leaves(config: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    plain = {name: child for name, child in container.items() if name != "hydra"}

    def walk(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for name, child in value.items():
                yield from walk(child, f"{key}.{name}" if key else str(name))
        else:
            yield key, value

    return walk(plain, prefix)


def _with_interpolation(origins: Mapping[str, str], key: str, raw: Any) -> str:
    origin = origins.get(key, "")
    parent = key
    while not origin and "." in parent:
        parent = parent.rpartition(".")[0]
        origin = origins.get(parent, "")
    if _is_interpolation(raw):
        return f"{origin} → {raw}" if origin else raw
    return origin


def _is_interpolation(raw: Any) -> bool:
    return isinstance(raw, str) and "${" in raw
