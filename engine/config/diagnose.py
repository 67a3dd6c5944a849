"""From a failed composition to one line a problem, each with the key, the value and the way out.

Hydra stops at the first problem and speaks of its own inner life. So a failed composition is taken apart: every
override is parsed, looked up and applied by itself, and what remains is validated too, so that all is named at once.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config.composed import Composed
from engine.config.maps import parts_of, plain_of
from engine.config.nearest import listed, nearest, nearest_key, suggestion
from engine.config.own_files import misplaced
from engine.config.parsing import Unread, parsed, quoted, spelt, unread
from engine.config.schemas import CONFIG_NAME, Registry, Tree, load_registry, slot_role
from engine.config.validate import kind, problems, schema_of, way_out
from engine.core.credentials import without_rest
from engine.core.errors import ConfigError, ConfigErrors

Recompose = Callable[[Sequence[str]], Composed]
HINT = "see --help for groups, options and keys"


def diagnose(overrides: Sequence[str], error: Exception, tree: Tree, recompose: Recompose) -> ConfigErrors:
    """Needs an initialised GlobalHydra. `error`, which Hydra raised, is the answer only if nothing else is found."""
    loader = GlobalHydra.instance().config_loader()
    errors: list[ConfigError] = []
    lines, broken = list(_parse(overrides, errors)), [unread(text) for text in overrides if parsed(text) is None]
    groups = set(_groups(loader))
    chosen = [line for line in lines if line.key_or_group in groups and not isinstance(line.value(), dict)]
    good: list[Override] = []
    for line in sorted(chosen, key=lambda line: bool(line.package)):  # those that make places for options go first
        found = _bad_choice(line, loader, good) or misplaced(_options(line), tree)
        errors += found
        good += [] if found else [line]
    try:
        config = loader.load_configuration(CONFIG_NAME, [str(line.input_line) for line in good], RunMode.RUN)
    except Exception as inner:
        unreadable = [ConfigError(one.key, one.value, one.problem, one.way_out) for one in broken]
        return ConfigErrors([*unreadable, *errors, told_by_hydra(inner)])
    values = _Values(config=config, loader=loader, groups=groups, registry=load_registry(tree.schemas))
    for one in broken:
        values.take_mended(one)
    values.errors += errors
    for line in lines:
        if line not in chosen:
            values.take(line)
    if not values.errors:
        return ConfigErrors([told_by_hydra(error)])
    return ConfigErrors([*values.errors, *_also([*good, *values.accepted], tree, recompose)])


@dataclass(kw_only=True)
class _Values:
    """Overrides of values, applied one after the other to a configuration whose options are chosen."""

    config: DictConfig
    loader: ConfigLoader
    groups: set[str]
    registry: Registry
    errors: list[ConfigError] = field(default_factory=list)
    accepted: list[Override] = field(default_factory=list)
    """What can be composed: the lines that are right, and what is advised for those that are not."""

    def take(self, line: Override) -> None:
        after = _applied(line, self.config)
        if after is None:
            self._refuse(line)
        elif _is_there_already(line, self.config):
            way_out = f"write {_as_given(line)}"
            self.errors.append(ConfigError(line.key_or_group, line.value(), "is in place already", way_out))
        else:
            self._accept(line, after)

    def take_mended(self, one: Unread) -> None:
        """An override that cannot be parsed: the way out is what would be taken, whole."""
        line = parsed(one.mended) if one.mended else None
        way_out = one.way_out
        if line is not None and line.key_or_group not in self.groups:
            before = len(self.errors)
            self.take(line)
            told, self.errors[before:] = self.errors[before:], []
            way_out = next((error.way_out for error in told if error.way_out.startswith("write ")), way_out)
        self.errors.append(ConfigError(one.key, one.value, one.problem, way_out))

    def _refuse(self, line: Override) -> None:
        key, value = line.key_or_group, line.value()
        if isinstance(value, dict) and isinstance(OmegaConf.select(self.config, key), DictConfig):
            parts = parts_of(key, value, self.config, self.registry)
            self.errors += [self._unknown(path, child, "") for path, child in parts.unknown]
            if parts.new or not parts.unknown:
                self.errors.append(ConfigError(key, value, parts.problem, f"write {parts.written}"))
            for part in filter(None, map(parsed, parts.lines)):
                after = _applied(part, self.config)
                if after is not None:
                    self._accept(part, after)
        elif OmegaConf.select(self.config, key) is not None:  # it is there, and takes nothing of the kind
            schema = schema_of(key, plain_of(self.config), self.registry)
            self.errors.append(ConfigError(key, value, f"wrong type, {kind(value)}", way_out(schema, key)))
        else:
            self.errors.append(self._unknown(key, value, _as_given(line)))

    def _unknown(self, key: str, value: Any, given: str) -> ConfigError:
        """`given`: the override without its `+`; empty where it is part of a map."""
        another = _of_another_option(key, value, self.config, self.loader)
        return another or _unknown_key(key, value, given, self.config, self.groups, self.registry)

    def _accept(self, line: Override, after: DictConfig) -> None:
        self.config = after
        self.accepted.append(line)


def _also(lines: list[Override], tree: Tree, recompose: Recompose) -> list[ConfigError]:
    """What is wrong with the rest of the configuration, once the named problems are left out."""
    try:
        return problems(recompose([str(line.input_line) for line in lines]), load_registry(tree.schemas))
    except ConfigErrors:
        return []


def _parse(overrides: Sequence[str], errors: list[ConfigError]) -> Iterator[Override]:
    """Those that can be; the others are `unread`."""
    for text in overrides:
        line = parsed(text)
        if line is None:
            continue
        if line.is_sweep_override():
            key, _, value = without_rest(text).partition("=")
            way_out = f"a list is {key}=[{value}], a sweep needs --multirun"
            errors.append(ConfigError(key, value, "several values for one key", way_out))
            continue
        yield line


def _as_given(line: Override) -> str:
    """An override without its `+`, to be written again."""
    text = str(line.input_line).lstrip("+")
    return text if text == without_rest(text) else f"{text.partition('=')[0]}=VALUE"


def _groups(loader: ConfigLoader, parent: str = "") -> Iterator[str]:
    for name in loader.list_groups(parent):
        group = f"{parent}/{name}" if parent else name
        yield group
        yield from _groups(loader, group)


def _options(line: Override) -> list[str]:
    value = line.value()
    return [f"{line.key_or_group}/{option}" for option in (value if isinstance(value, list) else [value])]


def _bad_choice(line: Override, loader: ConfigLoader, others: Sequence[Override]) -> list[ConfigError]:
    """Options of a group that do not exist; `others`: choices that are made beside it."""
    group, value = line.key_or_group, line.value()
    options = loader.get_group_options(group, ObjectType.CONFIG)
    if line.is_delete():
        return []
    key = str(line.get_key_element())
    if line.is_add() or line.is_force_add() or (line.package and key not in _places(loader, others)):
        return [ConfigError(key, value, "every group is in place already", f"write {group}={value}")]
    if not isinstance(value, str | list):
        return [ConfigError(key, value, "needs the name of an option", suggestion(None, options))]
    wanted = value if isinstance(value, list) else [value]
    return [
        ConfigError(key, option, "unknown option", suggestion(nearest(str(option), options), options))
        for option in wanted
        if option not in options
    ]


def _places(loader: ConfigLoader, choices: Sequence[Override]) -> set[str]:
    """Groups as Hydra calls them, those that an option takes into itself (`tasks@tasks.pool`) among them."""
    lines = [str(line.input_line) for line in choices]
    return set(loader.compute_defaults_list(CONFIG_NAME, lines, RunMode.RUN).overrides.known_choices)


def _applied(line: Override, config: DictConfig) -> DictConfig | None:
    """The configuration after one `key=value`; None when its key does not exist."""
    changed = copy.deepcopy(config)
    key, value = line.key_or_group, line.value()
    try:
        if line.is_delete():
            return changed if OmegaConf.select(changed, key) is not None else None
        OmegaConf.update(changed, key, value, merge=True, force_add=line.is_add() or line.is_force_add())
    except (OmegaConfBaseException, KeyError, TypeError, ValueError):
        return None
    return changed


def _is_there_already(line: Override, config: DictConfig) -> bool:
    """Hydra's `+` adds what is not there; with a mapping or a list it adds to what is."""
    there = OmegaConf.select(config, line.key_or_group)
    return line.is_add() and there is not None and not isinstance(line.value(), dict | list)


def _of_another_option(key: str, value: Any, config: DictConfig, loader: ConfigLoader) -> ConfigError | None:
    """A key that is right, of an option which was not chosen; one that is here at another place is none of another."""
    group, _, rest = key.partition(".")
    node = OmegaConf.select(config, group)
    plain = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    if any(name.endswith(f".{rest}") for name in _dotted(plain)):
        return None
    holders = [
        f"{group}={option}"
        for group in _groups(loader)
        if not group.startswith("hydra")
        for option in loader.get_group_options(group, ObjectType.CONFIG)
        if _has(f"{group}/{option}", key, loader)
    ]
    above = next((part for part in _above(key) if isinstance(OmegaConf.select(config, part), DictConfig)), "")
    node = OmegaConf.select(config, above) if above else {}
    if not holders or _as_number(key, node):
        return None
    allowed = listed(str(name) for name in node if name != "_target_") or "none of its kind"
    way_out = f"write {holders[0]} as well; without it allowed: {allowed}"
    return ConfigError(key, value, f"unknown key here, it belongs to {listed(holders)}", way_out)


def _has(file: str, key: str, loader: ConfigLoader) -> bool:
    for source in loader.get_sources():
        if source.is_config(file):
            loaded = source.load_config(file)
            package = loaded.header["package"] or file.rpartition("/")[0].replace("/", ".")
            keys = _dotted(OmegaConf.to_container(loaded.config, resolve=False))
            return key.startswith(f"{package}.") and key.removeprefix(f"{package}.") in keys
    return False


def _unknown_key(
    key: str, value: Any, given: str, config: DictConfig, groups: set[str], registry: Registry
) -> ConfigError:
    plain = plain_of(config)
    keys = [name for name in _dotted(plain) if "_target_" not in name]
    parent, _, leaf = key.rpartition(".")
    if not parent:
        names = list(dict.fromkeys([*sorted(name for name in groups if not name.startswith("hydra")), *plain]))
        guess = nearest(key, names) or nearest_key(key, keys)
        return ConfigError(key, value, "unknown key or group", suggestion(guess, names))
    node = OmegaConf.select(config, parent)
    if node is not None and not isinstance(node, DictConfig):
        return ConfigError(key, value, f"{parent} is a single value and has no keys", f"write {parent}=VALUE")
    free = (schema_of(parent, plain, registry) or {}).get("additionalProperties")
    if node is None and isinstance(free, dict):
        return ConfigError(key, value, f"{parent} is null, no map yet", f"write '{parent}={{{leaf}: {value}}}'")
    for above in _above(key):
        node = OmegaConf.select(config, above)
        if not isinstance(node, DictConfig):
            continue
        schema = schema_of(above, plain, registry)
        free = (schema or {}).get("additionalProperties")
        if isinstance(free, dict) and not slot_role(free):
            if _as_number(key, node):
                way_out = f"write {quoted(f'{above}={{{leaf}: {spelt(value)}}}')}"
                return ConfigError(key, value, "stands there as a number, not as a text", way_out)
            return ConfigError(key, value, f"not in the free-form map {above} yet", f"write +{given}")
        siblings = [str(name) for name in node if name != "_target_"]
        near = nearest(leaf, siblings) if above == parent else None
        guess = f"{parent}.{near}" if near else nearest_key(key, keys)
        return ConfigError(key, value, "unknown key", suggestion(guess, siblings))
    return ConfigError(key, value, "unknown key", suggestion(nearest_key(key, keys), list(plain)))


def _as_number(key: str, node: Any) -> bool:
    """Whether the map `node` has a number where the dotted key ends with a text, as a file may have it."""
    leaf = key.rpartition(".")[2]
    return leaf.isdigit() and isinstance(node, DictConfig) and int(leaf) in node


def _above(key: str) -> Iterator[str]:
    """`a.b.c` → `a.b`, `a`."""
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _dotted(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            key = f"{prefix}.{name}" if prefix else str(name)
            yield key
            yield from _dotted(child, key)


def told_by_hydra(error: Exception) -> ConfigError:
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
