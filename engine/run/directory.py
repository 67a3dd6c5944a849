"""The run's directory at the start of a job: made or found, claimed, and shown to hold this very configuration.

Refuses a directory that cannot be made, one in which another process works, and one that holds a run of another
configuration (a `run.name` that is used again): its trials and weights are not this run's.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import yaml

from engine.config.built import Built
from engine.config.bundle import decisive, differences
from engine.core.errors import ConfigError
from engine.core.whole import make_folder, remove_drafts
from engine.store.claim import claim
from engine.store.layout import Layout


@contextmanager
def open_directory(built: Built) -> Iterator[Layout]:
    """Hold the run's directory. With `run.fresh` an earlier run is moved aside first, never deleted.

    Raises ConfigErrors."""
    layout = Layout(root=built.directory)
    with ExitStack() as held:
        try:
            if built.fresh and layout.root.is_dir():
                _hold(layout, held)
                _set_aside(layout.root)
            make_folder(layout.root)
            _hold(layout, held)
        except OSError as error:
            problem = f"{layout.root} cannot be made or written ({error.strerror})"
            raise ConfigError("run.root", str(layout.root.parent), problem, "name a folder to write to") from error
        _check_same(built, layout)
        remove_leftovers(layout)
        yield layout


@contextmanager
def open_trial_directory(built: Built, task: str) -> Iterator[Layout]:
    """Make and hold a directory for one trial, beside those of runs: `run.name`, else `trial-TASK-N`.

    Raises ConfigError for a name that is taken: what is there is another run's."""
    parent, named = built.directory.parent, built.config["run"]["name"]
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", task)[:100]
    try:
        make_folder(parent)
        for root in [built.directory] if named else (parent / f"trial-{safe}-{number}" for number in count(1)):
            with suppress(FileExistsError):
                root.mkdir()
                break
        else:
            problem = f"{built.directory} is there already, and a trial is mixed into no other run"
            raise ConfigError("run.name", named, problem, "choose another name, or set run.name=null")
    except OSError as error:
        problem = f"{parent} cannot be written ({error.strerror})"
        raise ConfigError("run.root", str(parent), problem, "name a folder to write to") from error
    with ExitStack() as held:
        layout = Layout(root=root)
        _hold(layout, held)
        yield layout


def check_directory(built: Built) -> None:
    """Raise ConfigError where the run's directory holds another configuration; touches nothing."""
    if not built.fresh:
        _check_same(built, Layout(root=built.directory))


def remove_leftovers(layout: Layout) -> list[Path]:
    """Remove what a killed process left in a run's directory, which is held; returns what was removed."""
    removed = remove_drafts(layout.root)
    if layout.scratch.is_dir():
        shutil.rmtree(layout.scratch, ignore_errors=True)
        removed.append(layout.scratch)
    return removed


def _hold(layout: Layout, held: ExitStack) -> None:
    holder = held.enter_context(claim(layout))
    if holder:
        problem = f"process {holder} is working in {layout.root}"
        way_out = "wait for it or end it, or set run.name to run another beside it"
        raise ConfigError("run.name", layout.root.name, problem, way_out)


def _set_aside(root: Path) -> None:
    count = 1
    while (aside := root.with_name(f"{root.name}~{count}")).exists():
        count += 1
    root.rename(aside)
    print(f"the earlier run is kept as {aside}", file=sys.stderr)


def _check_same(built: Built, layout: Layout) -> None:
    """Nothing is refused before the first start has written its configuration."""
    if not layout.config.exists():
        return
    name, way_out = layout.root.name, "set another run.name, or run.fresh=true to set the earlier run aside"
    try:
        written = yaml.safe_load(layout.config.read_text())
        there = decisive(written["configuration"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError("run.name", name, f"{layout.config} cannot be read", way_out) from error
    here = decisive(built.config)
    if there != here:
        key, old, new = next(differences(there, here))
        problem = f"{layout.root} holds a run with {key}={old!r}, this one has {new!r}"
        raise ConfigError("run.name", name, problem, way_out)
