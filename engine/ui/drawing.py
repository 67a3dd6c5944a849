"""A figure of `engine.observe.figures` as inline SVG: no script, no other file, nothing that a strict policy forbids.

The figures are Plotly dictionaries; drawn is what they use of Plotly: lines, markers, bands between two curves, error
bars, a linear or logarithmic axis. Invariant: a value that is missing or not finite is a gap, on a logarithmic axis
also one that is not positive. Colours are classes of the style sheet, which knows light and dark. Of many values each
is a point of the curve still, but no mark of its own that tells its value: a page of a thousand steps stays small.
"""

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from engine.ui.text import visible

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 12, 12, 40
MARKS = 200
"""Values of a curve up to which each has a mark that tells its value; the table of numbers has them all."""
COLOURS = 6
"""Classes `c0` … in the style sheet."""
_DASHES = {
    "dash": "8 4",
    "dot": "2 3",
    "dashdot": "8 3 2 3",
    "longdash": "13 4",
    "longdashdot": "13 3 2 3",
}
_MARKS = {
    "circle": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "square": "M-3-3H3V3H-3Z",
    "diamond": "M0-4L4 0L0 4L-4 0Z",
    "triangle-up": "M0-4L4 3H-4Z",
    "cross": "M-1-4H1V-1H4V1H1V4H-1V1H-4V-1H-1Z",
    "x": "M-4-3L-3-4L0-1L3-4L4-3L1 0L4 3L3 4L0 1L-3 4L-4 3L-1 0Z",
}

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """From values to pixels."""

    low: float
    high: float
    first: float
    last: float
    """Pixels of `low` and `high`."""
    logarithmic: bool

    def at(self, value: float) -> float:
        if self.logarithmic:
            value = math.log10(value)
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Values at round distances; of a logarithmic axis whole powers of ten."""
        if self.logarithmic:
            powers = range(max(-307, math.ceil(self.low - 1e-9)), min(308, math.floor(self.high + 1e-9)) + 1)
            return [10.0**power for power in powers[:: max(1, len(powers) // 6)]]
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = size * next(times for times in (1, 2, 5, 10) if size * times >= rough * 0.999)
        start = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(start, math.floor(self.high / step + 1e-9) + 1)]


def draw(figure: Mapping[str, Any]) -> Markup:
    """The figure and its legend; `figure` is the plain form of a `Figure`."""
    traces = figure["traces"]
    x_axis = _x_axis(traces)
    y_axis = _y_axis(traces, figure["y_axis"])
    parts = [*_frame(x_axis, y_axis, figure["y_axis"].get("tickformat", ".4g"))]
    for index, trace in enumerate(traces):
        parts += _trace(trace, traces[index - 1] if index else trace, x_axis, y_axis)
    drawing = Markup(
        '<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}'
        '<text class="unit" x="{}" y="{}" text-anchor="middle">optimisation step</text></svg>'
    ).format(WIDTH, HEIGHT, figure["title"], Markup("").join(parts), (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6)
    return drawing + _legend(traces, figure["y_title"])


# ---------------------------------------------------------------- axes


def _x_axis(traces: Sequence[Mapping[str, Any]]) -> _Axis:
    steps = [step for trace in traces for step in trace["x"]] or [0, 1]
    return _Axis(low=min(steps) - 0.5, high=max(steps) + 0.5, first=_LEFT, last=WIDTH - _RIGHT, logarithmic=False)


def _y_axis(traces: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> _Axis:
    logarithmic = settings.get("type") == "log"
    values = [edge for trace in traces for _, y, low, high in _points(trace, logarithmic) for edge in (y, low, high)]
    if settings.get("rangemode") == "tozero":
        values.append(0.0)
    values += settings.get("autorangeoptions", {}).get("include", ())
    if logarithmic:
        values = [math.log10(value) for value in values if value > 0]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high == 0 and not logarithmic:
        high = 1.0  # shares, norms, losses: what lies below zero never happens, or is as far away
    elif high - low <= abs(high) * 1e-12:
        low, high = low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5
    room = (high - low) * 0.05
    bottom = low if low == 0 and not logarithmic else low - room
    return _Axis(low=bottom, high=high + room, first=HEIGHT - _BOTTOM, last=_TOP, logarithmic=logarithmic)


def _points(trace: Mapping[str, Any], logarithmic: bool) -> Iterator[tuple[float, float, float, float]]:
    """Step, value, and the ends of its error bar, for every value that can be drawn."""
    bars = trace.get("error_y") or {}
    above = bars.get("array") or [0.0] * len(trace["y"])
    below = bars.get("arrayminus") or [0.0] * len(trace["y"])
    for x, y, up, down in zip(trace["x"], trace["y"], above, below, strict=True):
        if _drawable(y, logarithmic):
            low, high = y - down, y + up
            yield (
                x,
                y,
                low if _drawable(low, logarithmic) else y,
                high if _drawable(high, logarithmic) else y,
            )


def _drawable(value: float | None, logarithmic: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not logarithmic)


def _frame(x_axis: _Axis, y_axis: _Axis, form: str) -> Iterator[Markup]:
    for value in y_axis.ticks():
        y = y_axis.at(value)
        yield Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(_LEFT, y, WIDTH - _RIGHT)
        yield Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 6, y + 4, _tick(value, form))
    for value in x_axis.ticks():
        if value == round(value):
            label = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{:.0f}</text>')
            yield label.format(x_axis.at(value), HEIGHT - _BOTTOM + 15, value)


def _tick(value: float, form: str) -> str:
    return format(0.0 if abs(value) < 1e-300 else value, form)


# ---------------------------------------------------------------- curves


def _trace(trace: Mapping[str, Any], before: Mapping[str, Any], x_axis: _Axis, y_axis: _Axis) -> Iterator[Markup]:
    logarithmic = y_axis.logarithmic
    points = [(x_axis.at(x), *(y_axis.at(value) for value in some)) for x, *some in _points(trace, logarithmic)]
    if trace.get("fill") == "tonexty":
        lower = [(x_axis.at(x), y_axis.at(y)) for x, y, _, _ in _points(before, logarithmic)]
        edge = [(x, y) for x, y, _, _ in points] + lower[::-1]
        name, opacity = _colour(trace["fillcolor"])
        yield Markup('<path class="area {}" fill-opacity="{}" d="{}Z"/>').format(name, opacity, _line(edge))
    if "lines" in trace["mode"] and trace["line"].get("width"):
        name, _ = _colour(trace["line"]["color"])
        dash = _DASHES.get(trace["line"].get("dash", "solid"), "none")
        path = "".join(_line(run) for run in _unbroken(trace, x_axis, y_axis))
        yield Markup('<path class="line {}" stroke-dasharray="{}" d="{}"/>').format(name, dash, path)
    if "error_y" in trace:
        name, _ = _colour(trace["error_y"]["color"])
        bars = "".join(f"M{x:.1f} {low:.1f}V{high:.1f}" for x, _, low, high in points if low != high)
        yield Markup('<path class="bar {}" d="{}"/>').format(name, bars)
    if "markers" in trace["mode"]:
        yield from _markers(trace, points, logarithmic)


def _markers(trace: Mapping[str, Any], points: Sequence[tuple[float, ...]], logarithmic: bool) -> Iterator[Markup]:
    """One mark a value, which says its value when it is pointed at; of many values dots, where no line joins them."""
    name, _ = _colour(trace["marker"]["color"])
    if len(points) > MARKS:
        if "lines" not in trace["mode"]:
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y, *_ in points)
            yield Markup('<path class="dots {}" d="{}"/>').format(name, dots)
        return
    mark = _MARKS[trace["marker"]["symbol"]]
    hovers = [text for text, y in zip(trace["text"], trace["y"], strict=True) if _drawable(y, logarithmic)]
    for (x, y, *_), hover in zip(points, hovers, strict=True):
        shape = Markup('<path class="mark {}" transform="translate({:.1f} {:.1f})" d="{}"><title>{}</title></path>')
        yield shape.format(name, x, y, mark, plain(hover))


def _unbroken(trace: Mapping[str, Any], x_axis: _Axis, y_axis: _Axis) -> Iterator[list[Point]]:
    """The curve's pieces between gaps."""
    piece: list[Point] = []
    for x, y in zip(trace["x"], trace["y"], strict=True):
        if _drawable(y, y_axis.logarithmic):
            piece.append((x_axis.at(x), y_axis.at(y)))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _line(points: Sequence[Point]) -> str:
    return "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(points))


def _colour(text: str) -> tuple[str, str]:
    """`colour:N` or `colour:N:OPACITY` as a class and an opacity."""
    _, number, *opacity = text.split(":")
    return f"c{int(number) % COLOURS}", opacity[0] if opacity else "1"


def _legend(traces: Sequence[Mapping[str, Any]], unit: str) -> Markup:
    entries = [Markup("<li>{}</li>").format(unit)]
    for trace in traces:
        if trace.get("showlegend", True):
            entries.append(Markup("<li>{}{}</li>").format(_swatch(trace), plain(trace["name"])))
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(entries))


def _swatch(trace: Mapping[str, Any]) -> Markup:
    """Line and mark as they are drawn."""
    parts = Markup("")
    if "lines" in trace["mode"]:
        dash = _DASHES.get(trace["line"].get("dash", "solid"), "none")
        name, _ = _colour(trace["line"]["color"])
        parts += Markup('<path class="line {}" stroke-dasharray="{}" d="M-16 0H16"/>').format(name, dash)
    if "markers" in trace["mode"]:
        name, _ = _colour(trace["marker"]["color"])
        parts += Markup('<path class="mark {}" d="{}"/>').format(name, _MARKS[trace["marker"]["symbol"]])
    return Markup('<svg class="swatch" viewBox="-16 -6 32 12">{}</svg>').format(parts)


def plain(text: str) -> str:
    """The figures' texts are HTML, since Plotly reads it in them."""
    return visible(html.unescape(text.replace("<br>", ", ")))
