"""`reports/learning.html`: whether a run learned.

Made from the stores of one run, and of others whose curves are to stand beside its own, live or finished.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.core.whole import write_whole
from engine.observe.curves import Curves, read_curves
from engine.observe.figures import figures
from engine.observe.headline import Table, headline, signed
from engine.observe.page import Page, names_apart, rendered
from engine.store.layout import Layout

_TABLES = "One row a metric, one column a step; docs/reference/metrics.md says what they are."


def write_report(layout: Layout, beside: Sequence[Layout] = ()) -> Path:
    """Write the report of a run, others beside it; returns its path. Raises RunError on a damaged file or full disk."""
    layouts = (layout, *beside)
    return write_page(layout, told_apart([read_curves(one) for one in layouts], layouts))


def write_page(layout: Layout, runs: Sequence[Curves]) -> Path:
    """Write the page about `runs` into the run of `layout`, the first of them; returns its path."""
    write_whole(layout.learning, page(runs).encode())
    return layout.learning


def page(runs: Sequence[Curves]) -> str:
    """The whole page; the first run is what it is about."""
    return rendered(
        Page(
            title=f"Learning: {runs[0].name}",
            summary=_summary(runs[0]),
            headline=headline(runs),
            figures=figures(runs),
            tables_are=_TABLES,
            tables=[(run.name, _all_metrics(run)) for run in runs],
        )
    )


def _summary(run: Curves) -> str:
    if not run.steps:
        return "No step is finished yet."
    first, last = run.windows
    if not first:
        return "One step is finished; there is nothing to compare it with yet."
    if run.learned is None:
        return f"No trial of the first {first} or of the last {last} steps was kept: there is nothing to compare."
    return f"{signed(run.learned)}: mean reward, last {last} of {len(run.steps)} steps minus first {first}"


def _all_metrics(run: Curves) -> Table:
    """Every metric of every step: one row a metric, one column a step."""
    heads = ["metric", *(str(record.step + 1) for record in run.steps)]
    rows = [[name, *("" if value is None else f"{value:.6g}" for value in run.series(name))] for name in run.metrics()]
    return heads, rows


def told_apart(runs: Sequence[Curves], layouts: Sequence[Layout]) -> list[Curves]:
    """Runs of one name carry as many of the folders above as tell them apart."""
    return [replace(run, name=name) for run, name in zip(runs, names_apart(layouts), strict=True)]
