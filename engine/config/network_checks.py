"""The rules of what sandboxes may reach (`sandbox.network`), by configuration alone.

Invariant: as `engine.config.checks`, whose rules these are. No name is looked up: what it stands for is judged when it
is connected to.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.core.errors import ConfigError
from engine.core.reach import FORMS, parse_place

Config = Mapping[str, Any]
KEY = "sandbox.network"


def places_can_be_read(config: Config) -> Iterator[ConfigError]:
    for phase, entries in lists(config).items():
        for index, entry in enumerate(entries):
            try:
                parse_place(entry)
            except ValueError as problem:
                yield ConfigError(f"{KEY}.{phase}[{index}]", entry, str(problem), FORMS)


def lists(config: Config) -> Mapping[str, Any]:
    """Phase → entries; nothing where a runtime has no such setting."""
    sandbox = config.get("sandbox")
    found = sandbox.get("network") if isinstance(sandbox, Mapping) else None
    return found if isinstance(found, Mapping) else {}


RULES = (places_can_be_read,)
