"""Credentials in a configuration: named by their variable, used, and never written, printed or hashed.

    ${oc.env:NAME} → resolved → `conceal` → `Secret` → the server's environment
                     what is written, printed and told: ${oc.env:NAME}

A schema marks a map of environment variables by `x-environment: true`. In it a value is a credential whose name looks
like one, and what came from `${oc.env:NAME}` is the machine's own; elsewhere a value that came from a variable so named
is a credential. `from=RUN` takes them from their variables.
Invariant: no file of a run or of a sweep holds one, and another one is the same run. Refuses one that stands in the
configuration itself.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.config.schemas import Registry, Schema, slot_role
from engine.core.credentials import HIDDEN, is_credential
from engine.core.errors import ConfigError, ConfigErrors

MARK = "x-environment"
_REFERENCE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*(,\s*(null|''|\"\")?\s*)?\}")
_DEFAULT = re.compile(r"(\$\{oc\.env:\s*\w+)\s*,[^}]*\}")
_FROM_ENVIRONMENT = "${oc.env:"
_PLACEHOLDER = re.compile(r"[^{}$]*\{\w+\}[^{}$]*")
"""`{api_key}`: the program fills it in."""
_PROBLEM = (
    "a credential that stands in the configuration itself would be seen in files, listings and the shell's history"
)


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


def conceal(
    config: Mapping[str, Any], interpolated: Mapping[str, str], registry: Registry
) -> tuple[dict[str, Any], dict[str, str]]:
    """A resolved configuration, valid or not, whose secrets are `Secret`; and its interpolations, with theirs as they
    are written. Raises ConfigErrors for credentials that are given by value."""
    found: dict[str, str] = {}
    given: list[ConfigError] = []

    def walk(value: Any, schema: Any, key: str, marked: bool, text: str) -> Any:
        text = interpolated.get(key, value if isinstance(value, str) and _FROM_ENVIRONMENT in value else text)
        name = key.rpartition(".")[2]
        if isinstance(value, Secret) or value in (None, "", "???") or (marked and _PLACEHOLDER.fullmatch(str(value))):
            return value
        if marked and is_credential(name) and not _REFERENCE.fullmatch(text):
            given.append(ConfigError(key, HIDDEN, _PROBLEM, f"export {name}=…, and write {key}='${{oc.env:{name}}}'"))
            return value
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
        if not (marked and _FROM_ENVIRONMENT in text) and not _names_credential(text):
            return value
        found[key] = _written(text)
        return Secret(str(value), found[key])

    top = registry.run.get("properties", {})
    concealed = {str(key): walk(value, top.get(key), str(key), False, "") for key, value in config.items()}
    if given:
        raise ConfigErrors(given)
    return concealed, {**interpolated, **found}


def shown(value: Any) -> Any:
    """A configuration as it may be written: plain values, secrets as their references."""
    if isinstance(value, Mapping):
        return {key: shown(child) for key, child in value.items()}
    if isinstance(value, list):
        return [shown(child) for child in value]
    return value.reference if isinstance(value, Secret) else value


def without(value: Any) -> Any:
    """A configuration without its secrets, be they `Secret` or, as they are written, references."""
    if isinstance(value, Mapping):
        return {key: without(child) for key, child in value.items() if not _secret(child)}
    return [without(child) for child in value if not _secret(child)] if isinstance(value, list) else value


@contextmanager
def unseen() -> Iterator[None]:
    """Within, what is resolved only to be printed holds no credential of the environment."""
    kept = {name: value for name, value in os.environ.items() if is_credential(name)}
    os.environ.update(dict.fromkeys(kept, HIDDEN))
    try:
        yield
    finally:
        os.environ.update(kept)


def _secret(value: Any) -> bool:
    return isinstance(value, Secret) or (isinstance(value, str) and _FROM_ENVIRONMENT in value)


def _schema_at(value: Mapping[str, Any], schema: Any, registry: Registry) -> Schema:
    if not isinstance(schema, Mapping):
        return {}
    target = value.get("_target_")
    if slot_role(schema) is not None:
        return registry.components.get(target, {}) if isinstance(target, str) else {}
    return schema


def _written(text: str) -> str:
    """An interpolation as it may be seen: without an empty default, and the default of a credential is one itself."""
    bare = _REFERENCE.fullmatch(text) or _names_credential(text)
    return _DEFAULT.sub(r"\1}", text) if bare else text


def _names_credential(text: str) -> bool:
    return any(is_credential(name) for name in re.findall(r"\$\{oc\.env:\s*(\w+)", text))
