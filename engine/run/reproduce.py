"""`from=RUN`, and a run that goes on: what differs between a run as it was written and the same run here, told before
it starts.

Invariant: versions, machine and what the command line changes are told; other tasks or another checkpoint than the
configuration had there make another experiment, and are refused unless `run.other_data=true`, or the command line
itself asks for others.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.config.built import Built
from engine.config.bundle import configuration_hash, decisive, differences
from engine.config.composed import Written
from engine.core.errors import ConfigError
from engine.core.records import Task

_DATA = ("tasks",)
_CHECKPOINT = ("model", "tasks", "harnesses", "seed")
"""Keys of the configuration that decide the tasks, and the checkpoint: a warm start is made of tasks and harnesses."""
_NOT_BUILT = "not built here, so not compared"
_NAMED = 5
"""How many tasks are named."""

Description = Mapping[str, Any]
"""As `engine.config.bundle.describe` makes it."""
Difference = tuple[str, str]
"""Topic, and what differs."""


def fingerprints(tasks: Iterable[Task]) -> dict[str, str]:
    """Task id → fingerprint."""
    return {task.id: task.fingerprint for task in tasks}


def tell(built: Built, here: Description) -> None:
    """Say on standard error what differs here from the run that is run again; nothing when none is.

    Raises ConfigError for other data that nobody asked for."""
    if built.written is None:
        return
    print("\n".join(told(built.written, here)), file=sys.stderr, flush=True)
    if not built.other_data:
        _refuse_other_data(built.written.description, here, ("from", built.written.given))


def resumed(built: Built, there: Description | None, here: Description) -> Description:
    """What a run's directory says of it when it goes on: what its first start wrote, and what differs since.

    `there`: what it says now; None at the first start. Says on standard error what differs. Raises ConfigError for
    other data that nobody asked for: the weights are of those that the run began with."""
    if there is None:
        return here
    found = [f"{topic}: {text}" for topic, text in _differences(there, here)]
    if not found:
        return there
    print("\n  ".join((f"going on with {built.directory}; what differs here:", *found)), file=sys.stderr, flush=True)
    if not built.other_data:
        _refuse_other_data(there, here, ("run.name", built.directory.name))
    before = list(there.get("resumed") or ())
    if before and before[-1].get("differs") == found:
        return there
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**there, "resumed": [*before, {"at": now, "differs": found}]}


def told(written: Written, here: Description) -> list[str]:
    """What differs, as lines for a person."""
    found = list(_differences(written.description, here))
    if not found:
        return [f"running {written.path} again: nothing differs here"]
    return [f"running {written.path} again; what differs here:", *(f"  {topic:14} {text}" for topic, text in found)]


def _differences(there: Description, here: Description) -> Iterator[Difference]:
    was, is_now = there["configuration_hash"], configuration_hash(there["configuration"])
    if was != is_now:
        yield "configuration", f"edited since, or hashed by another rule: it was {was}, its contents give {is_now}"
    for key, old, new in differences(decisive(there["configuration"]), decisive(here["configuration"])):
        yield "configuration", f"{key}: {_short(old)} → {_short(new)}"
    yield from _code(_mapping(there, "code"), _mapping(here, "code"))
    for key in ("python", "platform"):
        if there.get(key) != here[key]:
            yield key, f"{there.get(key)} → {here[key]}"
    changed = list(differences(_mapping(there, "dependencies"), here["dependencies"]))
    if changed:
        yield "dependencies", ", ".join(f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in changed)
    for key, old, new in differences(_mapping(there, "hardware"), here["hardware"]):
        yield "hardware", f"{key}: {_short(old)} → {_short(new)}"
    tasks = _tasks(_mapping(there, "data"), here["data"]) if "data" in here else _NOT_BUILT
    if tasks:
        yield "tasks", tasks
    if there.get("checkpoint") != here.get("checkpoint"):
        yield "checkpoint", f"{there.get('checkpoint')} → {here['checkpoint']}" if "checkpoint" in here else _NOT_BUILT


def _refuse_other_data(there: Description, here: Description, asked: tuple[str, str]) -> None:
    """`asked`: key and value by which the run was named."""
    others = []
    tasks = _tasks(_mapping(there, "data"), here["data"])
    if tasks and "data" in there and _same(there, here, _DATA):
        others.append(f"other tasks ({tasks})")
    if there.get("checkpoint") not in (None, here["checkpoint"]) and _same(there, here, _CHECKPOINT):
        others.append(f"another checkpoint ({there['checkpoint']} → {here['checkpoint']})")
    if others:
        problem = f"the same configuration gives {' and '.join(others)} here, which is another experiment"
        way_out = "bring that run's tasks and checkpoint here, or set run.other_data=true"
        raise ConfigError(*asked, problem, way_out)


def _same(there: Description, here: Description, keys: Sequence[str]) -> bool:
    old, new = decisive(there["configuration"]), decisive(here["configuration"])
    return all(old.get(key) == new.get(key) for key in keys)


def _code(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Difference]:
    """Commits are named; the code's own fingerprint says whether it is the same."""
    if there.get("fingerprint") == here["fingerprint"]:
        return
    old, new = (
        f"{one.get('commit') or 'no commit'}{' and changes' if one.get('dirty') else ''}" for one in (there, here)
    )
    yield "code", f"{old} → {new}" if old != new else f"{old}, but its files differ"


def _tasks(there: Mapping[str, Any], here: Mapping[str, str]) -> str:
    """`3 of 128 differ (a, b, c), 1 of 128 missing (d), 2 new (e, f)`; empty when all are the same."""
    differ = [name for name in there if name in here and there[name] != here[name]]
    missing = [name for name in there if name not in here]
    new = [name for name in here if name not in there]
    parts = [(differ, f"of {len(there)} differ"), (missing, f"of {len(there)} missing"), (new, "new")]
    return ", ".join(f"{len(names)} {what} ({_listed(names)})" for names, what in parts if names)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _mapping(record: Description, key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}
