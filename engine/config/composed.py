"""The record between composing and validating."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A resolved configuration and how it came about."""

    config: Mapping[str, Any]
    """Plain and resolved, not yet validated; a missing value, or one that depends on it, is the string `???`."""
    command_line: tuple[str, ...]
    """The overrides as they were given."""
    origins: Callable[[], Mapping[str, str]]
    """Dotted key → where its value was set; worked out when it is asked for."""
    interpolated: Mapping[str, str]
    """Dotted key → the interpolation that its value came from."""
    unresolved: Mapping[str, ConfigError]
    """Dotted key → why its interpolation has no value."""
