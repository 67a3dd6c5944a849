"""Components of the small configuration tree in `tree/`: they store what they are given."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FastEngine:
    threads: int
    device: str
    path: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Box:
    limits: "Limits"
    stages: list[Any]


@dataclass(frozen=True, kw_only=True)
class Limits:
    memory_mb: int


@dataclass(frozen=True, kw_only=True)
class Stage:
    strict: bool


@dataclass(frozen=True, kw_only=True)
class Agent:
    max_turns: int


class Foreign:
    """No schema names this class."""

    def __init__(self) -> None:
        raise AssertionError("a class without a schema was instantiated")
