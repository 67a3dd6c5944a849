"""`reports/learning.html`: whether a run learned, on one page that asks nothing of any other host.

Made from the stores of one run, and of others whose curves are to stand beside its own, live or finished. Plotly's
script stands in the page once; the page forbids its browser every request. Written whole or not at all.
"""

import html
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from string import Template
from typing import Any

from engine.core.whole import write_whole
from engine.observe.curves import Curves, read_curves
from engine.observe.figures import Figure, figures
from engine.observe.headline import Table, headline, signed
from engine.store.layout import Layout

_PAGE = Path(__file__).with_name("learning.html")


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
    from plotly.offline import get_plotlyjs

    drawn = figures(runs)
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return Template(_PAGE.read_text()).substitute(
        title=html.escape(f"Learning: {runs[0].name}"),
        summary=html.escape(_summary(runs[0])),
        written=written,
        headline=_table(headline(runs)),
        sections="\n".join(_section(figure) for figure in drawn),
        tables="\n".join(_all_metrics(run) for run in runs),
        figures=_script([asdict(figure) for figure in drawn]),
        plotly=get_plotlyjs(),
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


def _section(figure: Figure) -> str:
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    return f'<section><h2>{title}</h2><p>{caption}</p><div class="figure" id="{figure.id}"></div></section>'


def _table(table: Table) -> str:
    heads, rows = table
    lines = [f"<tr>{''.join(_cells('th', heads))}</tr>"]
    lines += [f"<tr>{''.join(_cells('th', row[:1]))}{''.join(_cells('td', row[1:]))}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _cells(tag: str, texts: Sequence[str]) -> Iterator[str]:
    return (f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def _all_metrics(run: Curves) -> str:
    """Every metric of every step: one row a metric, one column a step."""
    heads = ["metric", *(str(record.step + 1) for record in run.steps)]
    rows = [[name, *("" if value is None else f"{value:.6g}" for value in run.series(name))] for name in run.metrics()]
    return f"<details><summary>{html.escape(run.name)}</summary>{_table((heads, rows))}</details>"


def _script(value: Any) -> str:
    """JSON that can stand inside a script element; a number that JSON does not know (inf) is a gap in its curve."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def told_apart(runs: Sequence[Curves], layouts: Sequence[Layout]) -> list[Curves]:
    """Runs of one name carry as many of the folders above as tell them apart."""
    places = [layout.root.resolve().parts for layout in layouts]
    return [replace(run, name=_shortest(place, places)) for run, place in zip(runs, places, strict=True)]


def _shortest(place: tuple[str, ...], places: Sequence[tuple[str, ...]]) -> str:
    for length in range(1, len(place)):
        if sum(other[-length:] == place[-length:] for other in places) == 1:
            return "/".join(place[-length:])
    return str(Path(*place))
