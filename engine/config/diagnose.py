"""From a failed composition to one line a problem, each with the key, the value and the way out.

Hydra stops at the first problem and speaks of its own inner life. So a failed composition is taken apart: every
override is parsed, looked up and applied by itself, and what remains is validated too, so that all is named at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config.nearest import nearest, nearest_key, suggestion
from engine.core.errors import ConfigError, ConfigErrors

HINT = "see --help for groups, options and keys"


def diagnose(overrides: Sequence[str], error: Exception, config_name: str = "run") -> ConfigErrors:
    """Needs an initialised GlobalHydra. `error` is what Hydra raised; it is the answer only if nothing else is found."""
    loader = GlobalHydra.instance().config_loader()
    errors: list[ConfigError] = []
    parsed = list(_parse(overrides, errors))
    groups = set(_groups(loader))
    chosen = [line for line in parsed if line.key_or_group in groups and not isinstance(line.value(), dict)]
    good = [line for line in chosen if not (found := _bad_choice(line, loader)) or errors.extend(found)]
    values = [line for line in parsed if line not in chosen]
    try:
        config = loader.load_configuration(config_name, [str(line.input_line) for line in good], RunMode.RUN)
    except Exception as inner:
        return ConfigErrors([*errors, _from_hydra(inner)])
    accepted = [line for line in values if not _bad_value(line, config, groups, errors)]
    if not errors:
        return ConfigErrors([_from_hydra(error)])
    return ConfigErrors([*errors, *_also([*good, *accepted])])


def _also(lines: list[Override]) -> list[ConfigError]:
    """What is wrong with the rest of the configuration, once the named problems are left out."""
    from engine.config.compose import compose
    from engine.config.schemas import load_registry
    from engine.config.validate import problems

    try:
        return problems(compose([str(line.input_line) for line in lines]).config, load_registry())
    except ConfigErrors:
        return []


def _parse(overrides: Sequence[str], errors: list[ConfigError]) -> Iterator[Override]:
    parser = OverridesParser.create()
    for text in overrides:
        key, _, value = text.partition("=")
        try:
            (line,) = parser.parse_overrides([text])
        except HydraException:
            quoted = f"quote it for Hydra and the shell: '{key}=\"{value}\"'" if value else "write key=value"
            errors.append(ConfigError(key, value, "cannot be parsed", quoted))
            continue
        if line.is_sweep_override():
            way_out = f"a list is {key}=[{value}], a sweep needs --multirun"
            errors.append(ConfigError(key, value, "several values for one key", way_out))
            continue
        yield line


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for name in loader.list_groups(parent):
        group = f"{parent}/{name}" if parent else name
        yield group
        yield from _groups(loader, group)


def _bad_choice(line: Override, loader: ConfigLoader) -> list[ConfigError]:
    """Options of a group that do not exist."""
    group, value = line.key_or_group, line.value()
    options = loader.get_group_options(group, ObjectType.CONFIG)
    if line.is_delete():
        return []
    if not isinstance(value, str | list):
        return [ConfigError(group, value, "needs the name of an option", suggestion(None, options))]
    wanted = value if isinstance(value, list) else [value]
    return [
        ConfigError(group, option, "unknown option", suggestion(nearest(str(option), options), options))
        for option in wanted
        if option not in options
    ]


def _bad_value(line: Override, config: DictConfig, groups: set[str], errors: list[ConfigError]) -> bool:
    """Apply one `key=value`; on failure add why and return True."""
    key, value = line.key_or_group, line.value()
    try:
        if line.is_add() or line.is_force_add():
            OmegaConf.update(config, key, value, merge=True, force_add=True)
        elif line.is_delete():
            if OmegaConf.select(config, key) is None:
                raise KeyError(key)
        else:
            OmegaConf.update(config, key, value, merge=True)
    except (OmegaConfBaseException, KeyError, TypeError, ValueError):
        errors.append(_unknown_key(key, value, config, groups))
        return True
    return False


def _unknown_key(key: str, value: Any, config: DictConfig, groups: set[str]) -> ConfigError:
    plain = OmegaConf.to_container(config, resolve=False)
    plain = {name: child for name, child in plain.items() if name != "hydra"} if isinstance(plain, dict) else {}
    keys = [name for name in _dotted(plain) if "_target_" not in name]
    if "." not in key:
        names = [*sorted(name for name in groups if not name.startswith("hydra")), *plain]
        guess = nearest(key, names) or nearest_key(key, keys)
        return ConfigError(key, value, "unknown key or group", suggestion(guess, dict.fromkeys(names)))
    parent = key.rpartition(".")[0]
    node = OmegaConf.select(config, parent)
    guess = nearest_key(key, keys)
    if node is not None and not isinstance(node, DictConfig):
        return ConfigError(key, value, f"{parent} is a single value, it has no keys", f"set {parent}=VALUE")
    if isinstance(node, DictConfig):
        siblings = [str(name) for name in node if name != "_target_"]
        adding = "" if guess else f"; +{key}=… adds a key to a free-form map"
        return ConfigError(key, value, "unknown key", suggestion(guess, siblings) + adding)
    return ConfigError(key, value, "unknown key", suggestion(guess, list(plain)))


def _dotted(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            key = f"{prefix}.{name}" if prefix else str(name)
            yield key
            yield from _dotted(child, key)


def _from_hydra(error: Exception) -> ConfigError:
    """The last resort: what Hydra said, on one line."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, MissingConfigException):
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        options = list(error.options or [])
        where = str(error).split(":")[0] if str(error).startswith("In '") else "defaults list"
        problem = f"no such file ({where})"
        return ConfigError(group or "config", option, problem, suggestion(nearest(option, options), options))
    causes = " ".join(str(part) for part in (error, error.__cause__) if part is not None)
    text = " ".join(causes.replace("full_key:", "key").replace("object_type=dict", "").split())
    return ConfigError("configuration", None, text or type(error).__name__, HINT)
