"""`from=RUN`: what a run wrote, as a tree of configuration files, so that it is composed like any other.

    RUN/config.yaml → one option `written` a group, and a root that chooses them → overrides → validate → …

So whatever holds for a configuration holds here: options of groups and values may follow on the command line, `-m`
sweeps, `--cfg job` prints. Interpolations between keys are put back, so that `schedule.max_turns=3` still reaches the
harness; what the environment had set stays as it was, unless it is only a place on the machine or a secret, of which
only the variable's name was written.

Invariant: without overrides the composed configuration is the written one, but for `run.fresh` and `run.other_data`,
which are a command's business. The files lie in the cache under a digest of their contents, whole or not at all.
Refuses a folder without a `config.yaml`, and a file that no run wrote.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.types import RunMode

from engine.config.bundle import NOT_HASHED, code_version
from engine.config.compose import initialised
from engine.config.composed import WRITTEN, Composed, Written
from engine.config.credentials import Secret, conceal
from engine.config.schemas import CONFIG_NAME, ROOT, TREE, Registry, Schema, Tree, held_role, load_registry, slot_role
from engine.config.validate import MISSING
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.paths import cache_dir
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place

KEY = "from"
_WAY_OUT = "name a run's directory (the last line it prints) or its config.yaml"
_GLOBAL = ""
"""Package of the groups that choose options of others: experiment, scale."""
_REFERENCES = re.compile(r"[^$\\]*(\$\{[\w.]+\}[^$\\]*)+")
"""Text whose interpolations all name keys of the configuration: no environment, no clock."""
_DOLLAR = re.compile(r"(\\*)\$\{")
"""What OmegaConf takes for an interpolation, with the backslashes that would escape it."""


def take(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """RUN of `from=RUN`, if it is given, and the other overrides. Raises ConfigError when it is given twice."""
    given = [text.partition("=")[2].strip("'\"") for text in overrides if text.startswith(f"{KEY}=")]
    if len(given) > 1:
        raise ConfigError(KEY, given[1], f"given twice ({' and '.join(given)})", "one run is run again at a time")
    rest = [text for text in overrides if not text.startswith(f"{KEY}=")]
    return (given[0] if given else None), rest


def read_written(given: str, tree: Tree = TREE) -> Written:
    """Read what a run wrote, its secrets being `Secret`. Raises ConfigError."""
    path = Path(given).expanduser()
    if given and path.is_dir():
        path = path / "config.yaml"
        if not path.is_file():
            raise ConfigError(KEY, given, "holds no config.yaml, so no run was started in this folder", _WAY_OUT)
    if not path.is_file():
        raise ConfigError(KEY, given, "there is no such folder or file", _WAY_OUT)
    try:
        description = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ConfigError(KEY, given, f"{path} cannot be read ({reason})", "restore it from a copy") from error
    whole = isinstance(description, Mapping) and isinstance(description.get("configuration_hash"), str)
    if not whole or not isinstance(description.get("configuration"), Mapping):
        problem = f"{path} was written by no run of this program: it has no configuration and configuration_hash"
        raise ConfigError(KEY, given, problem, _WAY_OUT)
    interpolated = description.get("interpolated")
    interpolated = interpolated if isinstance(interpolated, Mapping) else {}
    configuration, interpolated = conceal(description["configuration"], interpolated, load_registry(tree.schemas))
    known = {**description, "configuration": configuration, "interpolated": interpolated}
    return Written(given=given, path=path, description=known)


def written_tree(written: Written, tree: Tree) -> Tree:
    """The tree that composes to what was written; the options of `tree` can be chosen beside it."""
    try:
        files = dict(_files(written, tree))
    except (TypeError, ValueError) as error:
        raise ConfigError(KEY, written.given, f"{written.path} holds no configuration ({error})", _WAY_OUT) from error
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_dir() / "written" / digest
    if not folder.is_dir():
        try:
            _write(files, folder)
        except OSError as error:
            problem = f"{folder} cannot be written ({error.strerror})"
            raise ConfigError("LEGO_RL_CACHE", str(cache_dir()), problem, "set it to a folder to write to") from error
    return replace(tree, configs=folder, extra=(tree.configs, *tree.extra), written=written)


def explained(composed: Composed, errors: ConfigErrors) -> ConfigErrors:
    """The errors of a configuration; those of a written one that this code refuses are told to be that."""
    written = composed.written
    own = {text.lstrip("+~").partition("=")[0] for text in composed.command_line}
    own |= set(composed.unresolved)  # a variable that is not set here
    foreign = [error for error in errors.errors if not any(f"{error.key}.".startswith(f"{key}.") for key in own)]
    if written is None or not foreign:
        return errors
    code = written.description.get("code")
    code = code if isinstance(code, Mapping) else {}
    if code.get("fingerprint") == code_version(ROOT)["fingerprint"]:
        return errors
    commit = code.get("commit") or "not known"
    problem = f"{written.path} was written by other code (commit {commit}), whose keys are not all those of this code"
    way_out = "set or choose what is named below, leave out with ~KEY what is unknown, or use that code"
    return ConfigErrors([ConfigError(KEY, written.given, problem, way_out), *errors.errors])


# ---------------------------------------------------------------- files


def _files(written: Written, tree: Tree) -> Iterator[tuple[str, str]]:
    """Path below the tree → contents."""
    root = yaml.safe_load((tree.configs / f"{CONFIG_NAME}.yaml").read_text(encoding="utf-8"))
    configuration = _with_references(written)
    registry = load_registry(tree.schemas)
    packages = _packages(tree)
    defaults: list[Any] = []
    for entry in root["defaults"]:
        ((group, _),) = entry.items() if isinstance(entry, Mapping) else ((entry, None),)
        if group not in packages:
            defaults.append(entry)  # `_self_`, and Hydra's own
        elif packages[group] == _GLOBAL:
            option = str(written.configuration.get(group, WRITTEN))
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", option):
                raise ConfigError(KEY, written.given, f"{group}={option!r} is no name of an option", _WAY_OUT)
            defaults.append({group: option})
            yield f"{group}/{option}.yaml", "# @package _global_\n"
        elif isinstance(configuration.get(packages[group]), dict):
            key = packages[group]
            defaults.append({group: WRITTEN})
            _fill(configuration[key], registry.run["properties"].get(key, {}), registry)
            yield f"{group}/{WRITTEN}.yaml", f"# @package {key}\n{_text(configuration.pop(key))}"
        else:
            defaults.append({group: None})
    place = {key: value for key, value in dict(configuration.pop("run", {})).items() if key in ("root", "name")}
    kept = {key: value for key, value in configuration.items() if key not in packages}
    whole = {**root, **kept, "defaults": defaults, "run": {**root["run"], **place}}
    yield f"{CONFIG_NAME}.yaml", _text(whole)


def _packages(tree: Tree) -> dict[str, str]:
    """Group → key of the configuration under which its option lies (`harness` → `harnesses`)."""
    with initialised(tree) as loader:
        defaults = loader.compute_defaults_list(CONFIG_NAME, [], RunMode.RUN).defaults
    found = {str(one.config_path).rpartition("/")[0]: str(one.package or "").partition(".")[0] for one in defaults}
    return {group: key for group, key in found.items() if group and not group.startswith("hydra")}


def _with_references(written: Written) -> dict[str, Any]:
    """The written configuration, whose text is text, with the interpolations put back that mean the same here."""
    configuration: dict[str, Any] = _escaped(written.configuration)
    interpolated = written.description.get("interpolated")
    for key, text in interpolated.items() if isinstance(interpolated, Mapping) else ():
        *parents, name = str(key).split(".")
        node: Any = configuration
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if parents and isinstance(node, dict) and name in node and (_REFERENCES.fullmatch(text) or key in NOT_HASHED):
            node[name] = text
    return configuration


def _escaped(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reference
    if isinstance(value, Mapping):
        return {str(key): _escaped(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_escaped(child) for child in value]
    return _DOLLAR.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def _fill(value: Any, schema: Schema, registry: Registry) -> None:
    """Keys that this code wants and the written configuration lacks become `???`: they are asked for by name, and can
    be set like any other."""
    if not isinstance(value, dict):
        for item in value if isinstance(value, list) and isinstance(schema.get("items"), Mapping) else ():
            _fill(item, schema["items"], registry)
        return
    if slot_role(schema) is not None:
        schema = registry.components.get(value.get("_target_", ""), {})
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value and held_role(properties[name]) is None:
            value[name] = MISSING
    for name, child in value.items():
        inner = properties.get(name, rest)
        if isinstance(inner, Mapping):
            _fill(child, inner, registry)


def _text(value: Any) -> str:
    """JSON, which is YAML in which no text can be taken for a number."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(files: Mapping[str, str], folder: Path) -> None:
    with temporary_folder(WRITTEN, folder.parent) as draft:
        for name, text in files.items():
            (draft / "new" / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / "new" / name).write_text(text, encoding="utf-8")
        move_into_place(draft / "new", folder)
