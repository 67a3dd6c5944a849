"""How OpenHands shortens a long history: the SDK's own condensers, chosen by configuration."""

from collections.abc import Sequence
from typing import Any, Protocol

from engine.core.errors import ConfigError


class Condenser(Protocol):
    """A choice of condenser."""

    def settings(self) -> dict[str, Any] | None:
        """Arguments of the SDK's LLMSummarizingCondenser; None: the history is never shortened."""
        ...

    def problems(self, key: str) -> Sequence[ConfigError]:
        """What the SDK would refuse; `key` is the full configuration key of this component."""
        ...


class CondenserOff:
    """The history only grows; a prompt beyond the context ends the trial."""

    def settings(self) -> dict[str, Any] | None:
        return None

    def problems(self, key: str) -> Sequence[ConfigError]:  # noqa: ARG002
        return ()


class SummarisingCondenser:
    """The policy itself writes a summary of the middle of the history when it has grown long."""

    def __init__(self, *, max_events: int, keep_first: int) -> None:
        self._max_events, self._keep_first = max_events, keep_first

    def settings(self) -> dict[str, Any] | None:
        return {"max_size": self._max_events, "keep_first": self._keep_first}

    def problems(self, key: str) -> Sequence[ConfigError]:
        most = self._max_events // 2 - 2
        if self._keep_first <= most:
            return ()
        problem = f"with max_events={self._max_events} no event would be left to condense"
        return (ConfigError(f"{key}.keep_first", self._keep_first, problem, f"set it to at most {most}"),)
