"""Renders `docs/reference/configuration.md` from the schemas: `python -m engine.config.reference > docs/…`.

Invariant: a pure function of `configs/` and `schemas/`; every group, option, component and key is on the page.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.schemas import TREE, Registry, Schema, Tree, held_role, load_registry, slot_role
from engine.config.validate import expectation

PAGE = TREE.configs.parent / "docs" / "reference" / "configuration.md"

_HEAD = """# Configuration reference

Rendered from `schemas/` and `configs/` by `python -m engine.config.reference`; a test keeps it current.

Options are chosen with `group=option`, values set with `group.key=value`; a new key of a free-form map needs `+`.
Order: groups < scale < experiment < command line. `python -m engine job=show` tells where each value came from.
"""


def render(tree: Tree, registry: Registry) -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD, *_top_level(registry.run), *_choosers(tree)]
    roles = registry.roles()
    for key, schema in registry.run["properties"].items():
        role = held_role(schema)
        if role is not None:
            lines += _group(key, role, schema, tree, registry)
    slots = {held_role(schema) for schema in registry.run["properties"].values()}
    nested = [role for role in sorted(roles) if role not in slots]
    if nested:
        lines += ["## Nested components", "", "They stand in the slots of the components above.", ""]
    for role in nested:
        lines += [f"### Role `{role}`", "", *_components(role, registry, "####")]
    return "\n".join(lines).rstrip() + "\n"


def _top_level(run: Schema) -> Iterator[str]:
    yield from ("## Top level", "")
    plain = {key: schema for key, schema in run["properties"].items() if held_role(schema) is None}
    yield from _table(dict(_flat(plain)))


def _choosers(tree: Tree) -> Iterator[str]:
    for group, what in (("experiment", "what is studied"), ("scale", "on what machine, and so how large")):
        yield from (f"## `{group}`", "", f"Chooses options of other groups: {what}.", "", *_options(group, tree), "")


def _group(key: str, role: str, schema: Schema, tree: Tree, registry: Registry) -> Iterator[str]:
    group = role
    yield from (f"## `{group}`", "", schema["description"], "")
    if key != group:
        yield from (f"Each option lies at `{key}.NAME`; `{group}=[a,b]` takes several.", "")
    yield from (*_options(group, tree), "", *_components(role, registry, "###"))


def _options(group: str, tree: Tree) -> Iterator[str]:
    for file in sorted((tree.configs / group).glob("*.yaml")):
        lines = file.read_text().splitlines()
        about = next(line[2:] for line in lines if line.startswith("# ") and "@package" not in line)
        yield f"- `{group}={file.stem}`: {about}"


def _components(role: str, registry: Registry, heading: str) -> Iterator[str]:
    for target in registry.roles().get(role, []):
        schema = registry.components[target]
        yield from (f"{heading} {schema['title']}", "", schema["description"], "", f"`_target_: {target}`", "")
        properties = {key: inner for key, inner in schema["properties"].items() if key != "_target_"}
        yield from _table(dict(_flat(properties)))


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Keys of nested plain mappings are listed under their own dotted names."""
    for key, schema in properties.items():
        yield f"{prefix}{key}", schema
        yield from _flat(schema.get("properties", {}), f"{prefix}{key}.")


def _table(properties: Mapping[str, Schema]) -> Iterator[str]:
    if not properties:
        yield from ("It has no settings.", "")
        return
    yield from ("| key | value | meaning |", "| --- | --- | --- |")
    for key, schema in properties.items():
        yield f"| `{key}` | {_cell(_allowed(schema))} | {_cell(schema['description'])} |"
    yield ""


def _allowed(schema: Schema) -> str:
    role = slot_role(schema)
    if role is not None:
        return f"a component of role `{role}`"
    for inner, words in ((schema.get("items"), "a list of"), (schema.get("additionalProperties"), "a map of")):
        if isinstance(inner, Mapping):
            kind = slot_role(inner)
            return f"{words} components of role `{kind}`" if kind else f"{words}: {expectation(inner)}"
    return expectation(schema)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(render(TREE, load_registry()))
