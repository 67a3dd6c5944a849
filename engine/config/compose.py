"""From YAML files and overrides to one resolved, plain configuration; Hydra does the composing.

Order: groups < scale < experiment < command line. Invariant: what leaves here holds only dict, list, str, int, float,
bool and None; a missing value is still the string `???`, for `validate` to name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config.origins import Origins, trace
from engine.config.schemas import CONFIGS
from engine.core.errors import ConfigError, ConfigErrors

CONFIG_NAME = "run"
HYDRA_VERSION_BASE = "1.3"


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A resolved configuration and how it came about."""

    config: Mapping[str, Any]
    """Plain and resolved; not yet validated."""
    command_line: tuple[str, ...]
    """The overrides as they were given."""
    origins: Origins
    """Dotted key → where its value was set."""


def compose(overrides: Sequence[str], configs: Path = CONFIGS) -> Composed:
    """Compose `run.yaml` with Hydra overrides. Raises ConfigErrors; every problem that can be told apart at once."""
    from engine.config.diagnose import diagnose

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(configs), version_base=HYDRA_VERSION_BASE, job_name="engine"):
        try:
            config = hydra_compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
        except Exception as error:
            raise diagnose(overrides, error) from error
        return finish(config, config)


def finish(config: DictConfig, with_hydra: DictConfig) -> Composed:
    """Resolve a composed configuration; `with_hydra` has Hydra's own node, which `${hydra:…}` reads."""
    singleton = HydraConfig.instance()
    before = singleton.cfg
    singleton.set_config(with_hydra)
    try:
        plain = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        failed = list(_unresolvable(plain, plain))
        if failed:
            raise ConfigErrors(failed)
        resolved = OmegaConf.to_container(plain, resolve=True, throw_on_missing=False)
        origins = trace(with_hydra, plain)
    finally:
        singleton.cfg = before
    assert isinstance(resolved, dict)
    overrides = tuple(str(item) for item in with_hydra.hydra.overrides.task)
    return Composed(
        config={str(key): value for key, value in resolved.items()}, command_line=overrides, origins=origins
    )


def _unresolvable(root: DictConfig, node: Container) -> Iterator[ConfigError]:
    """Each interpolation that has no value, by its full key; one that leads to a missing value is left to `validate`."""
    keys: list[Any] = list(range(len(node))) if OmegaConf.is_list(node) else list(node)
    for key in keys:
        child = node._get_node(key)
        if OmegaConf.is_interpolation(node, key):
            try:
                node[key]
            except OmegaConfBaseException as error:
                if OmegaConf.is_missing(node, key):
                    continue
                yield ConfigError(
                    node._get_full_key(key),
                    child._value() if child is not None else None,
                    f"cannot be resolved ({str(error).splitlines()[0]})",
                    "name an existing key, in full, as ${group.key}",
                )
        elif isinstance(child, Container) and not child._is_none() and not child._is_missing():
            yield from _unresolvable(root, child)
