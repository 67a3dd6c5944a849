"""`job=report`: the learning report of a run with others beside it, and the table of their headline numbers.

Starts nothing, and reads a run that is still going on like a finished one. Refuses a folder that holds no run.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.built import Built
from engine.core.errors import ConfigError
from engine.observe.curves import check_runs, is_run, read_curves
from engine.observe.headline import headline
from engine.observe.learning import told_apart, write_page
from engine.store.layout import Layout
from engine.store.reader import Reader

_KEY = "job.runs"
_WIDE = 1000
"""Columns when the output is no terminal: nothing is cut off or wrapped in a file or a pipe."""


class ReportJob:
    """Writes `reports/learning.html` into the first of `runs`.

    Args:
        runs: folders of runs; empty: the run of this configuration, beside all others under `run.root`.
    """

    def __init__(self, *, runs: Sequence[str]) -> None:
        self.runs = runs

    async def run(self, built: Built) -> int:
        """Exit code 0; the last line is the report's path. Raises ConfigError, and RunError on a damaged file."""
        roots = [Path(run) for run in self.runs] or _all_runs(built.directory)
        check_runs(_KEY, roots)
        layouts = [Layout(root=root) for root in roots]
        runs = told_apart([read_curves(layout) for layout in layouts], layouts)
        path = write_page(layouts[0], runs)
        show_table(*headline(runs))
        print(path)
        return 0


def _all_runs(own: Path) -> list[Path]:
    """This configuration's run first, or else the newest; then all others beside it that finished a step, newest first.

    Runs that were set aside (`run.fresh`) are left out, and links to runs that are there themselves."""
    folders = {folder.resolve(): folder for folder in sorted(own.parent.glob("*"), key=Path.is_symlink, reverse=True)}
    found = [folder for folder in folders.values() if "~" not in folder.name and is_run(folder)]
    stepped = [folder for folder in found if Reader(Layout(root=folder)).step_files()]
    if not stepped:
        problem = f"no run under {own.parent} has finished a step"
        raise ConfigError(_KEY, [], problem, "name the folders of runs: job.runs=[runs/a,runs/b]")
    return sorted(stepped, key=lambda folder: (folder != own, -Layout(root=folder).steps.stat().st_mtime, folder.name))


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=_WIDE, highlight=False)
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(Text(head), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
