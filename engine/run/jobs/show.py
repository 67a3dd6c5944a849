"""job=show: the resolved configuration as a tree, each value with the file or the command line that set it.

With `from=RUN` also what differs here from that run, tasks and checkpoint included where they are built. Starts nothing
and writes nothing. Plain text when the output is not a terminal.
"""

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from engine.config.built import Built
from engine.config.bundle import describe, fingerprint
from engine.config.validate import as_yaml
from engine.run import warm_start
from engine.run.guard import warning
from engine.run.reproduce import fingerprints, told
from engine.run.selection import unselected

_WIDE = 1000
"""Columns when the output is no terminal: nothing is cut off or wrapped in a file or a pipe."""


class ShowJob:
    """Prints the configuration and ends."""

    async def run(self, run: Built) -> int:
        """Returns 0."""
        console = Console(highlight=False) if sys.stdout.isatty() else Console(width=_WIDE, highlight=False)
        console.print(tree(run.config, run.origins()))
        for line in told(run.written, _here(run)) if run.written else ():
            console.print(Text(line))
        weak = warning(run.config)
        if weak:
            console.print(Text(weak, style="bold red"))
        console.print(Text(f"configuration hash {run.hash}, run directory {run.directory}"))
        return 0


def _here(run: Built) -> Mapping[str, Any]:
    """What the run would write; what is not built on this machine is left out."""
    described = describe(run, {}, "")
    bound = warm_start.bind(unselected(run))
    built = {"data": not run.tasks.problems(), "checkpoint": bound and not run.model.problems()}
    if built["data"]:
        described["data"] = fingerprints(run.tasks.load())
    if built["checkpoint"]:
        described["checkpoint"] = fingerprint(run.model.info().path)
    return {key: value for key, value in described.items() if built.get(key, True)}


def tree(config: Mapping[str, Any], origins: Mapping[str, str]) -> Tree:
    """A tree of keys; leaves read `key: value  # origin`."""
    root = Tree(Text("configuration"))
    _grow(root, config, "", origins)
    return root


def _grow(branch: Tree, value: Mapping[str, Any], prefix: str, origins: Mapping[str, str]) -> None:
    for name, child in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(child, list) and any(isinstance(item, Mapping) for item in child):
            child = {f"[{index}]": item for index, item in enumerate(child)}
        if isinstance(child, Mapping) and child:
            twig = Text(str(name), style="bold")
            if key in origins:
                twig.append(f"  # {origins[key]}", style="dim not bold")
            _grow(branch.add(twig), child, key, origins)
        else:
            line = Text.assemble(f"{name}: ", (as_yaml(child), "cyan"))
            origin = origins.get(key, "")
            branch.add(line.append(f"  # {origin}", style="dim") if origin else line)
