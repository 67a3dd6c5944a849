"""From YAML files and overrides to one resolved, plain configuration; Hydra does the composing.

Order: groups < scale < experiment < command line. Invariant: what leaves here holds only dict, list, str, int, float,
bool and None; a missing value is still the string `???`, for `validate` to name; a secret is a `Secret`.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from engine.config.composed import Composed
from engine.config.credentials import conceal
from engine.config.diagnose import diagnose
from engine.config.maps import text_keys
from engine.config.origins import chosen_files, command_line, trace
from engine.config.own_files import misplaced
from engine.config.schemas import CONFIG_NAME, TREE, Tree, load_registry
from engine.core.credentials import is_credential
from engine.core.errors import ConfigError, ConfigErrors

HYDRA_VERSION_BASE = "1.3"


def compose(overrides: Sequence[str], tree: Tree = TREE) -> Composed:
    """Compose `run.yaml` with Hydra overrides. Raises ConfigErrors; every problem that can be told apart at once."""
    with initialised(tree):
        try:
            config = hydra_compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
            return finish(config, config, tree)
        except Exception as error:
            failure = error
    raise explain(overrides, failure, tree) from failure


@contextmanager
def initialised(tree: Tree) -> Iterator[ConfigLoader]:
    """Hydra, ready to compose from `tree`; whatever was initialised before (a sweep in progress) is put back."""
    singleton = GlobalHydra.instance()
    before = singleton.hydra
    singleton.clear()
    try:
        with initialize_config_dir(str(tree.configs), version_base=HYDRA_VERSION_BASE, job_name="engine"):
            if tree.extra:
                search = copy.deepcopy(singleton.config_loader().get_search_path())
                for folder in tree.extra:
                    path = f"file://{folder.absolute()}"
                    search.prepend(provider="command-line", path=path, anchor=SearchPathQuery(provider="schema"))
                singleton.clear()
                Hydra.create_main_hydra2("engine", search)
            yield singleton.config_loader()
    finally:
        singleton.hydra = before


def explain(overrides: Sequence[str], error: Exception, tree: Tree) -> ConfigErrors:
    """Every problem of overrides whose composition failed with `error`."""
    with initialised(tree):
        return diagnose(overrides, error, tree, lambda lines: compose(lines, tree))


def finish(config: DictConfig, with_hydra: DictConfig, tree: Tree) -> Composed:
    """Resolve a composed configuration; `with_hydra` has Hydra's own node, which `${hydra:…}` reads.

    Raises ConfigErrors for options that lie where nothing is read."""
    if tree.extra:
        with initialised(tree) as loader:
            wrong = misplaced(chosen_files(with_hydra, loader), tree)
        if wrong:
            raise ConfigErrors(wrong)
    singleton = HydraConfig.instance()
    before = singleton.cfg
    singleton.set_config(with_hydra)
    try:
        raw = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        interpolated, unresolved = _settle_interpolations(raw)
        resolved = OmegaConf.to_container(raw, resolve=True, throw_on_missing=False)
    finally:
        singleton.cfg = before
    concealed, interpolated = conceal(text_keys(resolved), interpolated, load_registry(tree.schemas))

    def origins() -> dict[str, str]:
        with initialised(tree) as loader:
            return trace(with_hydra, config, loader, tree.written, interpolated)

    again = (f"from={tree.written.given}",) if tree.written else ()
    return Composed(
        config=concealed,
        command_line=(*again, *command_line(with_hydra)),
        origins=origins,
        interpolated=interpolated,
        unresolved=unresolved,
        written=tree.written,
    )


def _settle_interpolations(raw: DictConfig) -> tuple[dict[str, str], dict[str, ConfigError]]:
    """All interpolations by key, and those that fail; each failing one becomes `???`, so that the rest can be resolved.

    One that leads to a missing value is no failure of its own: `validate` names the missing value."""
    found: dict[str, str] = {}
    failed: dict[str, ConfigError] = {}
    broken: list[tuple[DictConfig | ListConfig, Any]] = []
    for node, key in _interpolations(raw):
        child: Any = node._get_node(key)
        name, text = str(node._get_full_key(key)), str(child._value())
        found[name] = text
        try:
            node[key]
        except InterpolationToMissingValueError:
            broken.append((node, key))
        except OmegaConfBaseException as error:
            failed[name] = _unresolved(name, text, str(error).splitlines()[0])
            broken.append((node, key))
    for node, key in broken:
        with flag_override(node, ["struct", "readonly"], [False, False]):
            node[key] = MISSING
    return found, failed


def _unresolved(name: str, text: str, reason: str) -> ConfigError:
    variable = re.search(r"Environment variable '(\w+)' not found", reason)
    if variable:
        problem = f"the environment variable {variable[1]} is not set"
        by_value = "" if is_credential(name.rpartition(".")[2]) else f", or give {name}=VALUE"
        return ConfigError(name, text, problem, f"set it{by_value}")
    way_out = "name an existing key, in full, as ${group.key}; a text's own dollar is written \\${…}"
    return ConfigError(name, text, f"cannot be resolved ({reason})", way_out)


def _interpolations(node: DictConfig | ListConfig) -> Iterator[tuple[DictConfig | ListConfig, Any]]:
    keys: list[Any] = list(range(len(node))) if isinstance(node, ListConfig) else list(node)
    for key in keys:
        child: Any = node._get_node(key)
        if OmegaConf.is_interpolation(node, key):
            yield node, key
        elif isinstance(child, DictConfig | ListConfig) and not child._is_none() and not child._is_missing():
            yield from _interpolations(child)
