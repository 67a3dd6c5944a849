"""How often each defence of a run found something, from the store alone: shares of trials with Wilson's 95 % intervals.

Invariant: of a trial that was tried again the last attempt counts, and a trial counts once for a defence and once for a
kind, however many findings it has. A defence that found nothing stands there with 0.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.observe.chosen import chosen
from engine.observe.estimates import wilson
from engine.store.reader import Reader

_COLUMNS = ("findings", "verdict_findings", "excluded")
_NUMBER = re.compile(r" \(call \d+\)$|\d+")


@dataclass(frozen=True, kw_only=True)
class Incidence:
    """One defence, or one kind of what it finds."""

    stage: str
    kind: str
    """What was found, numbers written as `#`; empty: anything."""
    trials: int
    """Trials in which it was found."""
    acted: int
    """Of these, trials in which something was done about it."""
    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Incidences:
    """What one run's trials show."""

    trials: int
    excluded: int
    any_finding: int
    """Trials with a finding of any defence."""
    rows: tuple[Incidence, ...]


def incidences(reader: Reader) -> Incidences:
    """Count a run's trials, live or finished. Raises ConfigError where none is finished."""
    trials = _last_attempts(reader)
    found = [frozenset(_findings(row)) for row in trials]
    with_it = Counter(name for trial in found for name in {(stage, kind) for stage, kind, _ in trial})
    acted = Counter(name for trial in found for name in {(stage, kind) for stage, kind, did in trial if did})
    names = {(stage, "") for stage in _stages(reader)} | set(with_it)
    return Incidences(
        trials=len(found),
        excluded=sum(row["excluded"] for row in trials),
        any_finding=sum(map(bool, found)),
        rows=tuple(_row(name, with_it[name], acted[name], len(found)) for name in sorted(names)),
    )


def table(counted: Incidences) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Heads and rows for a person."""
    rows = [
        (
            row.stage,
            row.kind or "anything",
            f"{row.trials}",
            f"{row.share:.1%}",
            f"{row.low:.1%} – {row.high:.1%}",
            f"{row.acted}",
        )
        for row in counted.rows
    ]
    return ("defence", "what it found", "trials", "share", "95 % interval", "acted upon"), [*rows]


def _row(name: tuple[str, str], trials: int, acted: int, of: int) -> Incidence:
    low, high = wilson(trials / of, of)
    return Incidence(stage=name[0], kind=name[1], trials=trials, acted=acted, share=trials / of, low=low, high=high)


def _findings(row: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Stage, kind (and once more empty) and whether it acted, of each finding."""
    for finding in (*row["findings"], *row["verdict_findings"]):
        kind = _NUMBER.sub(lambda number: "" if number[0].startswith(" ") else "#", finding["detail"])
        for one in ("", kind):
            yield finding["stage"], one, finding.get("acted", True)


def _last_attempts(reader: Reader) -> list[dict[str, Any]]:
    last = {}
    for named in sorted(chosen(reader, None, None), key=lambda named: _attempt(named.name)):
        last[named.split, named.step, named.name.rpartition("-a")[0]] = named
    return [reader.row(named.step, named.split, named.name, _COLUMNS) for named in last.values()]


def _attempt(name: str) -> int:
    return int(name.rpartition("-a")[2])


def _stages(reader: Reader) -> list[str]:
    """Names of the defences that the run had, by its configuration: a class is named as its module."""
    described = reader.config()
    if described is None:
        return []
    config = described["configuration"]
    stages = [stage["_target_"].split(".")[-2] for stage in config["defense"]["stages"] if stage.get("mode") != "off"]
    return stages if config["verify"].get("canaries") == "off" else [*stages, "canaries"]
