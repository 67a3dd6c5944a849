"""A report as one page that asks nothing of any other host: a table, figures, and all their numbers.

Plotly's script stands in the page once; the page forbids its browser every request.
"""

import html
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from engine.observe.figures import Figure
from engine.observe.headline import Table
from engine.store.layout import Layout

_PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, kw_only=True)
class Page:
    """What stands on a page; all text is plain."""

    title: str
    summary: str
    """One line that says what came out."""
    headline: Table
    figures: Sequence[Figure]
    tables_are: str
    """One line about the tables below the figures."""
    tables: Sequence[tuple[str, Table]]
    """With a name each; they are folded away."""


def rendered(page: Page) -> str:
    """The whole page."""
    from plotly.offline import get_plotlyjs

    return Template(_PAGE.read_text()).substitute(
        title=html.escape(page.title),
        summary=html.escape(page.summary),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        headline=_table(page.headline),
        sections="\n".join(_section(figure) for figure in page.figures),
        tables_are=html.escape(page.tables_are),
        tables="\n".join(_folded(name, table) for name, table in page.tables),
        figures=_script([asdict(figure) for figure in page.figures]),
        plotly=get_plotlyjs(),
    )


def names_apart(layouts: Sequence[Layout]) -> list[str]:
    """Names of runs; those of one name carry as many of the folders above as tell them apart."""
    places = [layout.root.resolve().parts for layout in layouts]
    return [_shortest(place, places) for place in places]


def _shortest(place: tuple[str, ...], places: Sequence[tuple[str, ...]]) -> str:
    for length in range(1, len(place)):
        if sum(other[-length:] == place[-length:] for other in places) == 1:
            return "/".join(place[-length:])
    return str(Path(*place))


def _section(figure: Figure) -> str:
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    return f'<section><h2>{title}</h2><p>{caption}</p><div class="figure" id="{figure.id}"></div></section>'


def _folded(name: str, table: Table) -> str:
    return f"<details><summary>{html.escape(name)}</summary>{_table(table)}</details>"


def _table(table: Table) -> str:
    heads, rows = table
    lines = [f"<tr>{''.join(_cells('th', heads))}</tr>"]
    lines += [f"<tr>{''.join(_cells('th', row[:1]))}{''.join(_cells('td', row[1:]))}</tr>" for row in rows]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _cells(tag: str, texts: Sequence[str]) -> Iterator[str]:
    return (f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


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
