"""Checks a resolved configuration against the schemas and reports every problem at once.

Invariant: what passes holds no missing value, no unknown key, and no `_target_` that the schemas do not admit for its
slot. Nothing is imported or instantiated here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from engine.config.composed import Composed
from engine.config.nearest import nearest, suggestion
from engine.config.schemas import Registry, Schema, held_role, slot_role
from engine.core.credentials import without_values
from engine.core.errors import ConfigError, ConfigErrors

MISSING = "???"

_Validator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    # JSON Schema takes 1000.0 for an integer; a constructor, and `range`, do not
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


def validate(composed: Composed, registry: Registry) -> None:
    """Raises ConfigErrors with one line a problem."""
    errors = problems(composed, registry)
    if errors:
        raise ConfigErrors(errors)


def problems(composed: Composed, registry: Registry) -> list[ConfigError]:
    """Every problem, in the configuration's order; what merely follows from another (by interpolation) is left out."""
    check = _Check(registry, composed)
    check.node(composed.config, registry.run, "")
    errors = [error for error in check.errors if error.key not in composed.unresolved]
    errors = [*composed.unresolved.values(), *_told_by_the_clock(composed), *errors]
    wrong = {error.key for error in errors}
    return [error for error in errors if not _follows(error, composed, wrong)]


def _told_by_the_clock(composed: Composed) -> Iterator[ConfigError]:
    """Hydra's `${now:…}`: a run whose name, place or settings it decides is never found again by the same command."""
    for key, text in composed.interpolated.items():
        if _CLOCK.search(text):
            problem = "another value at each start, so the same command would begin a new run instead of going on"
            yield ConfigError(key, text, problem, "write a fixed value")


_CLOCK = re.compile(r"\$\{\s*now\s*:")


def _follows(error: ConfigError, composed: Composed, wrong: set[str]) -> bool:
    sources = _REFERENCE.findall(composed.interpolated.get(error.key, ""))
    return any(source == key or source.startswith(f"{key}.") for source in sources for key in wrong)


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def schema_of(key: str, config: Mapping[str, Any], registry: Registry) -> Schema | None:
    """The schema of the value at a dotted key (no list indices) of a configuration that need not be valid."""
    value: Any = config
    schema: Any = registry.run
    for part in key.split("."):
        if not isinstance(value, Mapping) or not isinstance(schema, Mapping):
            return None
        schema = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        value = value.get(part)
        if isinstance(schema, Mapping) and slot_role(schema) and isinstance(value, Mapping):
            schema = registry.components.get(value.get("_target_", ""))
    return schema if isinstance(schema, Mapping) else None


@dataclass
class _Check:
    registry: Registry
    composed: Composed
    errors: list[ConfigError] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)
    """Mappings whose missing keys are named."""

    def node(self, value: Any, schema: Schema, key: str) -> None:
        """Check one value by its own schema, then each component that the schema says it holds."""
        for error in _Validator(schema).iter_errors(value):
            if error.validator != "required":
                self.errors.extend(_translate(error, key))
            elif (path := _path(key, error.absolute_path)) not in self._told:  # it comes once a missing key
                self._told.add(path)
                self._absent(path, error)
        self.slots(value, schema, key)

    def slots(self, value: Any, schema: Schema, key: str) -> None:
        role = slot_role(schema)
        if role is not None:
            self.component(value, role, key)
        elif value == MISSING:
            self.errors.append(_missing(key, f"{key}=VALUE ({way_out(schema, key)})"))
        elif isinstance(value, float) and not math.isfinite(value):
            if not any(error.key == key for error in self.errors):  # no bound refuses NaN, and not all refuse inf
                self.errors.append(ConfigError(key, value, "not a finite number", way_out(schema, key)))
        elif isinstance(value, Mapping):
            properties = schema.get("properties", {})
            rest = schema.get("additionalProperties")
            for name, child in value.items():
                inner = properties.get(name, rest)
                if isinstance(inner, Mapping):
                    self.slots(child, inner, _join(key, name))
        elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            for index, child in enumerate(value):
                self.slots(child, schema["items"], f"{key}[{index}]")

    def component(self, value: Any, role: str, key: str) -> None:
        targets = self.registry.roles().get(role, [])
        if value == MISSING:
            self.errors.append(_missing(key, f"{key}={'OPTION' if '.' not in key else f'… ({self._settings(role)})'}"))
            return
        if not isinstance(value, Mapping) or "_target_" not in value:
            way_out = f"choose an option of the group ({key}=OPTION)" if "." not in key else self._settings(role)
            problem = f"no component, needs `_target_` and the settings of the role {role}"
            self.errors.append(ConfigError(key, _short(value), problem, way_out))
            return
        target = value["_target_"]
        schema = self.registry.components.get(target) if isinstance(target, str) else None
        if schema is None:
            self._refuse(f"{key}._target_", target, "not an admitted component", targets)
        elif schema["x-role"] != role:
            self._refuse(f"{key}._target_", target, f"fills the role {schema['x-role']}, not {role}", targets)
        else:
            self.node(value, schema, key)

    def _absent(self, parent: str, error: ValidationError) -> None:
        """Name the keys that a mapping lacks, each with what it takes and where it is written."""
        instance: Any = error.instance
        schema: Any = error.schema
        wanted: Any = error.validator_value
        for name in wanted:
            if name in instance:
                continue
            key, child = _join(parent, name), schema["properties"].get(name, {})
            role = held_role(child)
            if role and not parent:
                self.errors.append(_missing(key, f"{role}=OPTION"))
                continue
            takes = self._settings(role, child) if role else way_out(child, key)
            self.errors.append(ConfigError(key, MISSING, "missing value", f"{self._place(key, role)} ({takes})"))

    def _place(self, key: str, role: str | None) -> str:
        if any(line.partition("=")[0] == f"~{key}" for line in self.composed.command_line):
            return f"leave out ~{key}"
        parent, _, name = key.rpartition(".")
        parent = parent.partition("[")[0]  # a list has one origin
        origins = (origin for known, origin in self.composed.origins().items() if f"{known}.".startswith(f"{parent}."))
        file = next((origin.partition(" ")[0] for origin in origins if ".yaml" in origin), None)
        ways = [f"write {name}: … in {file}"] if file else []
        ways += [f"+{key}=VALUE"] if role is None and "[" not in key else []
        return ", or ".join(ways) or f"write {name}: …"

    def _settings(self, role: str, slot: Schema | None = None) -> str:
        """What a slot of the role takes, where it is no group."""
        targets = self.registry.roles().get(role, [])
        if len(targets) != 1:
            return suggestion(None, targets)
        properties = self.registry.components[targets[0]]["properties"]
        keys = (f"{name}: {expectation(child)}" for name, child in properties.items())
        text = f"give {{{', '.join(keys)}}}"
        return f"{text}: {_first_sentence(slot['description'])}" if slot and "description" in slot else text

    def _refuse(self, key: str, target: Any, problem: str, targets: list[str]) -> None:
        way_out = suggestion(nearest(str(target), targets), targets)
        self.errors.append(ConfigError(key, target, problem, way_out))


def _translate(error: ValidationError, prefix: str) -> Iterator[ConfigError]:
    key = _path(prefix, error.absolute_path)
    value: Any = error.instance
    schema: Any = error.schema
    wanted: Any = error.validator_value
    way = way_out(schema, key)
    if value == MISSING:
        return  # named once, by `slots`, whatever its type
    if error.validator == "additionalProperties" and isinstance(wanted, bool):
        known = list(schema.get("properties", {}))
        for name in value:
            if name not in known:
                allowed = [name for name in known if name != "_target_"]
                guess = nearest(name, allowed)
                guess = _join(key, guess) if guess else None
                yield ConfigError(_join(key, name), _short(value[name]), "unknown key", suggestion(guess, allowed))
    elif error.validator == "enum":
        allowed = [as_yaml(choice) for choice in wanted]
        yield ConfigError(key, value, "unknown choice", suggestion(nearest(str(value), allowed), allowed))
    elif error.validator == "const":
        yield ConfigError(key, _short(value), "unknown choice", f"only {as_yaml(wanted)} exists")
    elif error.validator == "type":
        quotes = ", which its quotes make it" if _is_quoted_collection(value, wanted) else ""
        yield ConfigError(key, _short(value), f"wrong type, {kind(value)}{quotes}", way)
    elif error.validator in _RANGE:
        yield ConfigError(key, _short(value), "out of range", way)
    elif error.validator == "pattern":
        yield ConfigError(key, _short(value), "wrong form", way)
    else:
        message = error.message.replace(repr(value), repr(without_values(value, key)))
        yield ConfigError(key, _short(value), message.splitlines()[0], way)


def _is_quoted_collection(value: Any, wanted: Any) -> bool:
    text = value.strip() if isinstance(value, str) else ""
    ends = {("{", "}"): "object", ("[", "]"): "array"}.get((text[:1], text[-1:]))
    return ends is not None and ends in ([wanted] if isinstance(wanted, str) else wanted)


_RANGE = frozenset(
    {f"{end}{what}" for end in ("min", "max") for what in ("imum", "Length", "Items", "Properties")}
    | {"exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)


def _missing(key: str, way_out: str) -> ConfigError:
    return ConfigError(key, MISSING, "missing value", f"set {way_out}")


def way_out(schema: Any, key: str) -> str:
    """`give an integer ≥ 1: number of prompts` from a property's schema."""
    if not isinstance(schema, Mapping):
        return f"see the schema of {key}"
    text = f"give {expectation(schema)}"
    description = schema.get("description")
    return f"{text}: {_first_sentence(description)}" if description else text


def expectation(schema: Schema) -> str:
    """In words, what a property's schema allows: `an integer ≥ 1`, `one of a, b`, `a string or null`."""
    if "enum" in schema:
        return "one of " + ", ".join(as_yaml(choice) for choice in schema["enum"])
    if "const" in schema:
        return as_yaml(schema["const"])
    types = schema.get("type", "value")
    names: list[str] = types if isinstance(types, list) else [types]
    words = " or ".join(_WORDS.get(name, name) for name in names)
    bounds = [f"{sign} {schema[word]}" for word, sign in _BOUNDS.items() if word in schema]
    if schema.get("minLength"):
        bounds.append("that is not empty" if schema["minLength"] == 1 else f"of ≥ {schema['minLength']} characters")
    if schema.get("minItems") or schema.get("minProperties"):
        bounds.append(f"with ≥ {schema.get('minItems') or schema.get('minProperties')} entries")
    if "pattern" in schema:
        bounds.append(f"that matches {schema['pattern']}")
    return " ".join([words, " and ".join(bounds)]).strip()


_WORDS = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "a mapping",
    "value": "a value",
}
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}


def as_yaml(value: Any) -> str:
    """A scalar as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def kind(value: Any) -> str:
    """In words, what a value is."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), type(value).__name__)


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".").replace("\n", " ")


def _short(value: Any) -> Any:
    """Values are shown whole unless a whole subtree would be printed."""
    value = without_values(value)
    return value if len(repr(value)) <= 80 else f"{repr(value)[:77]}…"


def _path(prefix: str, parts: Any) -> str:
    key = prefix
    for part in parts:
        key = f"{key}[{part}]" if isinstance(part, int) else _join(key, part)
    return key


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
