"""The records between composing and validating."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.errors import ConfigError

WRITTEN = "written"
"""The option of every group that holds what a run wrote."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a run wrote beside itself, to be run again (`from=RUN`)."""

    given: str
    """RUN, as it was given: the run's directory or its `config.yaml`."""
    path: Path
    """The `config.yaml`."""
    description: Mapping[str, Any]
    """Its contents: see `engine.config.bundle.describe`."""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Resolved, as the run had it."""
        configuration: Mapping[str, Any] = self.description["configuration"]
        return configuration


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A resolved configuration and how it came about."""

    config: Mapping[str, Any]
    """Plain and resolved, not yet validated; a missing value, or one that depends on it, is the string `???`."""
    command_line: tuple[str, ...]
    """The overrides as they were given, `from=RUN` among them."""
    origins: Callable[[], Mapping[str, str]]
    """Dotted key → where its value was set; worked out when it is asked for."""
    interpolated: Mapping[str, str]
    """Dotted key → the interpolation that its value came from."""
    unresolved: Mapping[str, ConfigError]
    """Dotted key → why its interpolation has no value."""
    written: Written | None
    """The run that is run again; None: composed from the configuration files alone."""
