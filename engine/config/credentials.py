"""Credentials in a configuration: they are used, and never written, printed or hashed.

    command line → `hide` → Hydra sees ${hidden:KEY} → resolved → `conceal` → `Secret` → the server's environment
                                              what is written, printed and told: ${oc.env:NAME}

A schema marks a map of environment variables by `x-environment: true`. In it a value is secret whose name looks like a
credential's, and so is one that came from `${oc.env:NAME}`; elsewhere one that came from a variable so named.
`from=RUN` takes it from that variable, or from the command line.
Invariant: no file of a run or of a sweep holds a secret, and another secret is the same run. Refuses one that is swept.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import AnyNode, Container, OmegaConf
from omegaconf.errors import GrammarParseError

from engine.config.schemas import Registry, Schema, slot_role
from engine.core.credentials import HIDDEN, is_credential, without_rest
from engine.core.errors import ConfigError
from engine.core.whole import write_whole

MARK = "x-environment"
_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(,.*)?\}")
_FROM_ENVIRONMENT = "${oc.env:"
_SWEPT = "is no single value, and a credential decides no result to be swept for"
_given: dict[str, str] = {}
"""Key → what the command line gave for it; in this process alone."""
_unseen = [False]


class Secret(str):
    """A text that is what it is where it is used (encoded, compared), and where it is said its reference."""

    reference: str
    """`${oc.env:NAME}`."""

    def __new__(cls, value: str, reference: str) -> "Secret":
        made = super().__new__(cls, value)
        made.reference = reference
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return self[:], self.reference

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return repr(self.reference)

    def __format__(self, how: str) -> str:
        return format(self.reference, how)


# ---------------------------------------------------------------- what was composed


def conceal(
    config: Mapping[str, Any], interpolated: Mapping[str, str], registry: Registry
) -> tuple[dict[str, Any], dict[str, str]]:
    """A resolved configuration, valid or not, whose secrets are `Secret`; and its interpolations without them."""
    found: dict[str, str] = {}

    def walk(value: Any, schema: Any, key: str, marked: bool, text: str) -> Any:
        text = interpolated.get(key, text)
        reference = _reference(key.rpartition(".")[2], text, marked)
        if reference and isinstance(value, Mapping | list):  # which validation will refuse, and print
            return {key: Secret(str(value), reference)}
        if isinstance(value, Mapping):
            inner = _schema_at(value, schema, registry)
            properties, rest = inner.get("properties", {}), inner.get("additionalProperties")
            below = inner.get(MARK) is True
            return {
                name: walk(child, properties.get(name, rest), f"{key}.{name}" if key else str(name), below, text)
                for name, child in value.items()
            }
        if isinstance(value, list):
            items = schema.get("items") if isinstance(schema, Mapping) else None
            return [walk(child, items, f"{key}[{index}]", False, text) for index, child in enumerate(value)]
        if value is None or value == "???" or isinstance(value, Secret) or reference is None:
            return value
        found[key] = reference
        return Secret(str(value), reference)

    top = registry.run.get("properties", {})
    concealed = {str(key): walk(value, top.get(key), str(key), False, "") for key, value in config.items()}
    kept = {key: text for key, text in interpolated.items() if not _names_credential(text)}
    return concealed, {**kept, **found}


def shown(value: Any) -> Any:
    """A configuration as it may be written: plain values, secrets as their references."""
    if isinstance(value, Mapping):
        return {key: shown(child) for key, child in value.items()}
    if isinstance(value, list):
        return [shown(child) for child in value]
    return value.reference if isinstance(value, Secret) else value


def scrub(file: Path, registry: Registry) -> None:
    """Take the secrets out of a configuration that Hydra wrote, as it was before interpolations were resolved."""
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    if isinstance(written, Mapping):
        concealed = shown(conceal(written, {}, registry)[0])
        if concealed != written:
            write_whole(file, yaml.safe_dump(concealed, sort_keys=False).encode())


def conceal_written(description: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """What a run wrote, as this code writes it: one of older code wrote its credentials."""
    interpolated = description.get("interpolated")
    known = interpolated if isinstance(interpolated, Mapping) else {}
    concealed, known = conceal(description["configuration"], known, registry)
    made = {**description, "configuration": shown(concealed), "interpolated": known}
    given = dict(_given)
    try:
        made["command_line"] = hide(list(description.get("command_line") or ()), registry)
    finally:  # what this command was given is what counts
        _given.clear()
        _given.update(given)
    resumed = description.get("resumed")
    if resumed:
        made["resumed"] = [{**one, "differs": [without_rest(text) for text in one["differs"]]} for one in resumed]
    return made


def without(value: Any) -> Any:
    """A configuration without its secrets, be they `Secret` or, as they are written, references."""
    if isinstance(value, Mapping):
        return {key: without(child) for key, child in value.items() if not _secret(child)}
    return [without(child) for child in value if not _secret(child)] if isinstance(value, list) else value


def _secret(value: Any) -> bool:
    return isinstance(value, Secret) or (isinstance(value, str) and _FROM_ENVIRONMENT in value)


def _schema_at(value: Mapping[str, Any], schema: Any, registry: Registry) -> Schema:
    if not isinstance(schema, Mapping):
        return {}
    target = value.get("_target_")
    if slot_role(schema) is not None:
        return registry.components.get(target, {}) if isinstance(target, str) else {}
    return schema


def _reference(name: str, text: str, marked: bool) -> str | None:
    """How a secret is written; None for what is none. `text`: the interpolation that it came from."""
    credential = is_credential(name) if marked else _names_credential(text)
    if not credential:
        return text if marked and _FROM_ENVIRONMENT in text else None
    variable = _VARIABLE.fullmatch(text)
    return f"{_FROM_ENVIRONMENT}{variable[1] if variable else name}}}"


def _names_credential(text: str) -> bool:
    return any(is_credential(name) for name in re.findall(r"\$\{oc\.env:\s*(\w+)", text))


# ---------------------------------------------------------------- the command line


def hide(overrides: Sequence[str], registry: Registry) -> list[str]:
    """The overrides with `${hidden:KEY}` in the place of each credential that they hold. Safe to repeat.

    Raises ConfigError for a credential that is swept."""
    maps = frozenset(_marked({"properties": {**registry.components, "run": registry.run}}))
    return [_hidden(text, maps) for text in overrides]


def _hidden(text: str, maps: frozenset[str]) -> str:
    sign, equals, value = text.partition("=")
    key = sign.lstrip("+~").partition("@")[0]
    *parents, name = key.split(".")
    if not equals or value in ("", "null", "???") or "${hidden:" in value.replace("\\", ""):  # escaped by a sweep
        return text
    if parents and parents[-1] in maps and is_credential(name):
        return sign if sign.startswith("~") else f"{sign}={_instead(key, value)}"
    if "{" in value:
        return _hidden_below(text, sign, key, maps)
    return text


def _hidden_below(text: str, sign: str, key: str, maps: frozenset[str]) -> str:
    """The credentials in a map that is given as a whole, or swept."""
    try:
        parsed = OverridesParser.create().parse_override(text)._value
    except HydraException:
        return text
    hidden: list[str] = []

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [walk(child, path) for child in value]
        if not isinstance(value, dict):
            return value
        made = {}
        for name, child in value.items():
            below = f"{path}.{name}"
            credential = path.rpartition(".")[2] in maps and is_credential(str(name))
            if credential and not isinstance(child, dict | list):
                hidden.append(below)
                given = child.text if isinstance(child, QuotedString) else str(child)
                child = QuotedString(text=_stand_in(below, given), quote=Quote.single)
            made[name] = walk(child, below)
        return made

    changed = walk(parsed.list if isinstance(parsed, ChoiceSweep) else parsed, key)
    if hidden and isinstance(parsed, ChoiceSweep):
        raise ConfigError(hidden[0], HIDDEN, _SWEPT, f"give it once, beside what is swept: +{hidden[0]}=VALUE")
    return f"{sign}={Override._get_value_element_as_str(changed)}" if hidden else text


def _instead(key: str, value: str) -> str:
    """What Hydra is given for the value of an override."""
    variable = _VARIABLE.fullmatch(_unquoted(value))
    if variable is None:
        return _stand_in(key, _one(key, value))
    return value if not variable[2] else f"'{_stand_in(key, variable[0])}'"


def _stand_in(key: str, text: str) -> str:
    """What stands for a credential: nothing but the name of a variable may be seen of it."""
    variable = _VARIABLE.fullmatch(text)
    if variable and not variable[2]:
        return text
    if variable and not re.search(r"[${},]", variable[2][1:]):
        return f"{_FROM_ENVIRONMENT}{variable[1]},{_keep(key, _unquoted(variable[2][1:]))}}}"
    return _keep(key, text)


def _one(key: str, value: str) -> str:
    """What is given, as text whatever it looks like; in quotes it may hold anything."""
    text = _unquoted(value)
    if text == value.strip() and ("," in text or re.fullmatch(r"\w+\(.*\)", text)):
        raise ConfigError(key, HIDDEN, _SWEPT, "give one, in quotes where it holds a comma or parentheses")
    return text


def _unquoted(value: str) -> str:
    """What is in quotes, if that is all; `'a','b'` is two."""
    value = value.strip()
    quoted = re.fullmatch(r"""(['"])((?:\\.|(?!\1).)*)\1""", value, re.DOTALL)
    return quoted[2].replace(f"\\{quoted[1]}", quoted[1]) if quoted else value


def _keep(key: str, value: str) -> str:
    _given[key] = value
    return f"${{hidden:{key}}}"


def _marked(schema: Any) -> Iterator[str]:
    """Names of the properties that are maps of environment variables."""
    if isinstance(schema, Mapping):
        for name, inner in schema.get("properties", {}).items():
            if isinstance(inner, Mapping) and inner.get(MARK) is True:
                yield name
            yield from _marked(inner)
        for word in ("items", "additionalProperties"):
            yield from _marked(schema.get(word))


@contextmanager
def unseen() -> Iterator[None]:
    """Within, what is resolved only to be printed holds no credential, of the command line or of the environment."""
    kept = {name: value for name, value in os.environ.items() if is_credential(name)}
    os.environ.update(dict.fromkeys(kept, HIDDEN))
    _unseen[0] = True
    try:
        yield
    finally:
        os.environ.update(kept)
        _unseen[0] = False


def _resolve(key: str, *, _parent_: Container) -> Any:
    if _unseen[0]:
        return HIDDEN
    if key not in _given:
        raise ValueError("it was given to another command")
    if "${" not in _given[key]:
        return _given[key]
    try:
        return AnyNode(_given[key], parent=_parent_)._dereference_node()._value()
    except GrammarParseError:  # which quotes it
        raise ValueError("it is no interpolation; write \\${ for ${") from None


OmegaConf.register_new_resolver("hidden", _resolve, replace=True)
