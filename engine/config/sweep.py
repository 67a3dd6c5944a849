"""A sweep's points (`-m`), all looked at before the first one starts.

Invariant: each point is composed, validated and taken up by the program (rules that span groups, what this machine
lacks) and every problem of every point is told at once; a problem that not all points share names its point. Refuses
a key that is given twice: Hydra would drop one of them in silence; `shuffle`, which draws whenever it is asked; and
what the sweeper of this project is given by its own keys, which are looked at only when it starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from engine.config.compose import compose, initialised
from engine.config.composed import Composed
from engine.config.parsing import unread
from engine.config.schemas import Tree, load_registry
from engine.config.validate import problems
from engine.core.credentials import without_rest
from engine.core.errors import ConfigError, ConfigErrors


class Program(Protocol):
    """What a command line runs."""

    def __call__(self, composed: Composed) -> int:
        """Run one configuration; returns an exit code and raises nothing but BaseException."""
        ...

    def take_point(self, name: str, composed: Composed) -> None:
        """A point of a sweep, which is valid. Raises ConfigError when it could not start, without starting it."""
        ...

    def begin_sweep(self) -> Path:
        """All points are taken: the folder of the sweep's own record. Raises ConfigError: two points are one run."""
        ...

    def run_point(self, index: int, composed: Composed) -> int:
        """As `__call__`, for the point that was taken as number `index`, from 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep that may start."""

    overrides: Mapping[str, str]
    """Each override → how Hydra is to be given it."""
    record: Path | None
    """Folder of its record; None where the points are only the sweeper's to know."""


def check_sweep(overrides: Sequence[str], tree: Tree, program: Program) -> Sweep:
    """Look at every point before the first one starts. Raises ConfigErrors.

    A fixed override becomes a sweep of one value: Hydra otherwise checks it against the configuration without the
    swept choices, where its key may not exist."""
    with initialised(tree) as loader:
        lines = _parse(overrides, loader)
    _refuse_repeated(lines)
    _refuse_keys_of_the_sweeper(lines)
    own = [line for line in lines if not line.is_hydra_override()]
    points = _points(own)
    _raise_problems({name: _problems(name, job, tree, program) for name, job in points.items()})
    return Sweep(
        overrides={str(line.input_line): _as_sweep(line) for line in own},
        record=program.begin_sweep() if points else None,
    )


def _points(lines: Sequence[Override]) -> dict[str, list[str]]:
    """What is swept in each point, as a name → all overrides of the point, in the order in which they run.

    Empty for a search space (`interval`), whose points only the sweeper knows."""
    if any(line.is_sweep_override() and not line.is_discrete_sweep() for line in lines):
        return {}
    jobs: list[list[str]] = BasicSweeper.split_arguments(list(lines), max_batch_size=None)[0]
    swept = [number for number, line in enumerate(lines) if line.is_sweep_override()] or range(len(lines))
    points: dict[str, list[str]] = {}
    for job in jobs:
        name = " ".join(_as_yaml(job[number]) for number in swept)
        if name in points:
            key, _, value = name.partition("=")
            raise ConfigError(key, value, "names one point twice", "give each value once")
        points[name] = job
    return points


def _as_yaml(override: str) -> str:
    """Hydra writes a swept truth value in Python's way."""
    key, equals, value = override.partition("=")
    return f"{key}{equals}{value.lower()}" if value in ("True", "False") else override


def _problems(name: str, job: Sequence[str], tree: Tree, program: Program) -> list[ConfigError]:
    try:
        composed = compose(job, tree)
        found = problems(composed, load_registry(tree.schemas))
        if not found:
            program.take_point(name, composed)
    except ConfigErrors as several:
        return list(several.errors)
    except ConfigError as error:
        return [error]
    return found


def _raise_problems(found: Mapping[str, Sequence[ConfigError]]) -> None:
    """Each problem once. One that is some points' alone, and of a key that is not swept, says which points."""
    where: dict[str, list[str]] = {}
    errors: dict[str, ConfigError] = {}
    for name, several in found.items():
        for error in several:
            where.setdefault(str(error), []).append(name)
            errors[str(error)] = error
    told = []
    for text, error in errors.items():
        swept = f" {error.key}=" in f" {where[text][0]}"
        if len(where[text]) < len(found) and not swept:
            problem = f"{error.problem} (in {', '.join(map(without_rest, where[text]))})"
            error = ConfigError(error.key, error.value, problem, error.way_out)
        told.append(error)
    if told:
        raise ConfigErrors(told)


def _parse(overrides: Sequence[str], loader: ConfigLoader) -> list[Override]:
    parsed: list[Override] = []
    errors: list[ConfigError] = []
    parser = OverridesParser.create(loader)
    del parser.functions.definitions["shuffle"]
    parser.functions.register("shuffle", _shuffle)
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            one = unread(text)
            problem, way_out = one.problem, one.way_out if one.why else "write key=value, or key=a,b for a sweep"
            if isinstance(error.__cause__, _Drawn):
                problem = (
                    "shuffle draws another order at each call, so the same command would not go on with its points"
                )
                way_out = "give the values in the order in which they are to run"
            errors.append(ConfigError(one.key, one.value, problem, way_out))
    if errors:
        raise ConfigErrors(errors)
    return parsed


class _Drawn(Exception):
    """Something in an override is left to chance."""


def _shuffle(*args: Any, **named: Any) -> None:  # noqa: ARG001 (it is called as Hydra's own)
    """In place of Hydra's own, the only one of its functions that draws; alone or inside another."""
    raise _Drawn


def _refuse_keys_of_the_sweeper(lines: Sequence[Override]) -> None:
    """`hydra.sweeper.params` holds points beside those of the command line. Another sweeper's are its own to know."""
    if any(line.key_or_group == "hydra/sweeper" for line in lines):
        return
    for line in lines:
        if line.key_or_group.startswith("hydra.sweeper.params"):
            value = without_rest(str(line.input_line).partition("=")[2])
            raise ConfigError(line.key_or_group, value, "adds points that nobody has looked at", "write -m key=a,b")


def _refuse_repeated(lines: Sequence[Override]) -> None:
    seen: dict[str, Override] = {}
    for line in lines:
        key = line.get_key_element().lstrip("+~")
        if key in seen:
            values = " and ".join(without_rest(str(one.input_line)) for one in (seen[key], line))
            value = without_rest(str(line.input_line).partition("=")[2])
            raise ConfigError(key, value, f"given twice ({values})", "give a key once")
        seen[key] = line


def _as_sweep(line: Override) -> str:
    text = str(line.input_line)
    key, equals, value = text.partition("=")
    if line.is_sweep_override() or line.is_delete() or not value or key.startswith("run."):
        return text
    if line.value() is None:  # which `choice` does not take; forced, so that Hydra does not look for its key
        return f"++{key.lstrip('+')}{equals}{value}"
    return f"{key}{equals}choice({value})"
