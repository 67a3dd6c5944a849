"""How images were delivered, for a person: a table, and `reports/delivery.html` with a figure for each quantity.

Invariant: what is shown of a mode is the median over its measurements; one that did not run is named with the reason.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.observe.figures import Figure, Trace
from engine.observe.headline import NONE, Table
from engine.observe.page import Page, rendered

_PATTERNS = ("", "/", "x", ".", "-", "+")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One image, delivered once."""

    seconds: float
    """From the request until a first command has run in a sandbox over it."""
    network_bytes: int | None
    """Both ways, heads included; None: not counted."""
    disk_bytes: int
    """Allocated for it: store and root, what they share counted once."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One measurement of one mode."""

    mode: str
    first: Part
    """The image, where nothing of it is there."""
    second: Part
    """Another one with most of its files, after it."""
    read_mb_s: float
    """Reading all files of the first one's root once, from the disk, in 10⁶ bytes a second."""


def table(found: Mapping[str, Sequence[Delivery]], missing: Mapping[str, str]) -> Table:
    """One row a mode."""
    heads = ["mode", *(column.head for column in _COLUMNS)]
    rows = [[mode, *_values(measured)] for mode, measured in found.items()]
    rows += [[mode, "not here", *[NONE] * (len(_COLUMNS) - 1)] for mode in missing]
    return heads, rows


def reasons(missing: Mapping[str, str]) -> list[str]:
    """A line for each reason why modes did not run."""
    named: dict[str, list[str]] = {}
    for mode, reason in missing.items():
        named.setdefault(reason, []).append(mode)
    return [f"Not here: {', '.join(modes)}: {reason}." for reason, modes in named.items()]


def page(title: str, found: Mapping[str, Sequence[Delivery]], missing: Mapping[str, str]) -> str:
    """The whole page."""
    return rendered(
        Page(
            title=title,
            summary=" ".join((f"{len(found)} modes were measured here.", *reasons(missing))),
            headline=table(found, missing),
            figures=[_figure(quantity, found) for quantity in _QUANTITIES],
            tables_are="One row a measurement, in the order in which they were made.",
            tables=[(mode, _all(measured)) for mode, measured in found.items()],
        )
    )


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """What one figure shows."""

    id: str
    title: str
    caption: str
    unit: str
    y_axis: Mapping[str, Any]
    of: Callable[[Delivery], tuple[float | None, ...]]
    """Of the first and, where it has one, of the second image."""


_QUANTITIES = (
    _Quantity(
        id="startup",
        title="Start-up latency",
        caption="From the request for an image until the first command has run in a sandbox over it. Log scale.",
        unit="seconds",
        y_axis={"type": "log"},
        of=lambda one: (one.first.seconds, one.second.seconds),
    ),
    _Quantity(
        id="network",
        title="Network traffic",
        caption="Bytes between the registry and this machine, both ways.",
        unit="MB",
        y_axis={"rangemode": "tozero"},
        of=lambda one: (_mb(one.first.network_bytes), _mb(one.second.network_bytes)),
    ),
    _Quantity(
        id="disk",
        title="Disk traffic",
        caption="What the image took on the disk: the store of layers and the root, what they share counted once.",
        unit="MB",
        y_axis={"rangemode": "tozero"},
        of=lambda one: (_mb(one.first.disk_bytes), _mb(one.second.disk_bytes)),
    ),
    _Quantity(
        id="read",
        title="Read throughput",
        caption="All files of the root, read once after they were dropped from memory.",
        unit="MB/s",
        y_axis={"rangemode": "tozero"},
        of=lambda one: (one.read_mb_s,),
    ),
)


def _figure(quantity: _Quantity, found: Mapping[str, Sequence[Delivery]]) -> Figure:
    names = ("first image", "second image, with most of its files")
    columns = [[quantity.of(one) for one in measured] for measured in found.values()]
    traces = [
        _bars(index, name, list(found), [[one[index] for one in column] for column in columns])
        for index, name in enumerate(names[: len(columns[0][0])])
    ]
    return Figure(
        id=quantity.id,
        title=quantity.title,
        caption=f"{quantity.caption} Bars: medians; whiskers: from the least to the most.",
        y_title=quantity.unit,
        traces=traces,
        y_axis=quantity.y_axis,
        x_title="mode of delivery",
        x_names=list(found),
    )


def _bars(index: int, name: str, modes: Sequence[str], columns: Sequence[Sequence[float | None]]) -> Trace:
    known = [[value for value in column if value is not None] for column in columns]
    middle = [statistics.median(column) if column else None for column in known]
    return {
        "type": "bar",
        "x": list(range(1, len(modes) + 1)),
        "y": middle,
        "name": name,
        "text": [
            f"{mode}: {'not counted' if value is None else f'{value:.4g}'}"
            for mode, value in zip(modes, middle, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": f"%{{text}}<extra>{name}</extra>",
        "marker": {"color": f"colour:{index}", "pattern": {"shape": _PATTERNS[index]}},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [
                max(column) - value if value is not None else 0.0 for column, value in zip(known, middle, strict=True)
            ],
            "arrayminus": [
                value - min(column) if value is not None else 0.0 for column, value in zip(known, middle, strict=True)
            ],
            "color": "colour:text",
            "thickness": 1.2,
        },
    }


def _values(measured: Sequence[Delivery]) -> list[str]:
    """The medians, as they are shown."""
    found = []
    for column in _COLUMNS:
        known = [value for one in measured if (value := column.of(one)) is not None]
        found.append(format(statistics.median(known), column.form) if known else NONE)
    return found


def _all(measured: Sequence[Delivery]) -> Table:
    heads = ["measurement", *(column.head for column in _COLUMNS)]
    return heads, [[str(number), *_values([one])] for number, one in enumerate(measured, 1)]


def _mb(size: int | None) -> float | None:
    return None if size is None else size / 1e6


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One of the tables."""

    head: str
    of: Callable[[Delivery], float | None]
    form: str


_COLUMNS = (
    _Column(head="start-up, s", of=lambda one: one.first.seconds, form=".2f"),
    _Column(head="network, MB", of=lambda one: _mb(one.first.network_bytes), form=".1f"),
    _Column(head="disk, MB", of=lambda one: _mb(one.first.disk_bytes), form=".1f"),
    _Column(head="read, MB/s", of=lambda one: one.read_mb_s, form=".0f"),
    _Column(head="second image: start-up, s", of=lambda one: one.second.seconds, form=".2f"),
    _Column(head="network, MB", of=lambda one: _mb(one.second.network_bytes), form=".1f"),
    _Column(head="disk, MB", of=lambda one: _mb(one.second.disk_bytes), form=".1f"),
)
