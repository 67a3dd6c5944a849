"""A page's dictionary as HTML or as JSON.

Invariant: all text is escaped, and no character that a terminal or a browser would obey instead of showing reaches
either: control characters, marks that turn the direction of text, invisible ones are made visible in HTML and written
as `\\u....` in JSON. Templates cannot switch that off by forgetting a filter.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from engine.observe.digits import below, is_correlation
from engine.ui.drawing import draw
from engine.ui.places import Page
from engine.ui.text import visible

NONE = "–"
LONGEST = 240
"""Characters of one token that HTML shows; a tiny vocabulary has whole system prompts as one. JSON has them all."""
_NEAR = 8
"""Neighbours of the step that is shown, among many, which are offered too."""


def as_json(page: Page) -> bytes:
    """ASCII alone; a number that JSON does not know (NaN, infinity) is null."""
    return (json.dumps(_known(page), ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f") + "\n").encode()


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def as_html(template: str, page: Page) -> str:
    """The page by a template of `pages/`."""
    return _TEMPLATES.get_template(template).render(page)


def _finalize(value: Any) -> Any:
    """Every value that a template shows passes here; Markup is what this package made itself."""
    if value is None:
        return NONE
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number(value: float | None, form: str = ".6g") -> str:
    return NONE if value is None else format(value, form)


def _metric(value: float | None, name: str) -> str:
    return _number(value) if value is None or not is_correlation(name) else below(value, 6)


def _duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _moment(unix: float | None) -> str:
    try:
        return NONE if unix is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
    except (ValueError, OverflowError, OSError):  # of a damaged file: no moment that a calendar knows
        return str(unix)


def _piece(text: str) -> str:
    """A token's text on one line, cut where it is long."""
    return text[:LONGEST].replace("\n", "⏎").replace("\t", "⇥")


def _versions(versions: Sequence[int]) -> str:
    return ", ".join(map(str, versions)) or NONE


def _to(*parts: object, **query: object) -> str:
    """An address of this server; what is None or empty stands in no query."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return path + ("?" + urlencode(asked) if asked else "")


def _near(numbers: Sequence[int], here: int | None) -> list[int | None]:
    """Those to offer of an ascending list: its ends, the neighbours of `here`, and some on the way; None: left out."""
    many = len(numbers)
    at = numbers.index(here) if here in numbers else many - 1
    stride = max(1, many // 20)
    kept = [
        index
        for index in range(many)
        if many <= 4 * _NEAR or abs(index - at) <= _NEAR or index in (0, many - 1) or not index % stride
    ]
    offered: list[int | None] = []
    for before, index in zip([-1, *kept], kept, strict=False):
        offered += [numbers[index]] if index == before + 1 else [None, numbers[index]]
    return offered


def _sample(name: str) -> str:
    """Of a trial's name the part that tells it from others of the same task."""
    return name[name.rfind("-s") + 1 :]


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "number": _number,
    "metric": _metric,
    "duration": _duration,
    "moment": _moment,
    "piece": _piece,
    "versions": _versions,
    "yaml": _yaml,
    "near": _near,
    "sample": _sample,
}
_TEMPLATES.globals |= {"to": _to, "draw": draw, "longest": LONGEST}
