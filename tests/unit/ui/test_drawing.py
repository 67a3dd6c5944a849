"""Figures as SVG: every value at its place, gaps as gaps, and text as text."""

import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from learning_pieces import a_run

from engine.observe.curves import read_curves
from engine.observe.figures import figures
from engine.ui.drawing import draw

STEPS = [{"a": [float(step > 1), 0.0], "b": [0.0]} for step in range(4)]
GAPS = [1e-6, float("inf"), 0.0, 1e-4]
METRICS = {
    "train/entropy": [1.0, 0.5, 0.0, 2.0],
    "alignment/max_abs_dlogp": GAPS,
    "alignment/pearson_r": [1.0] * 4,
    "stages/<b>\x1b_p50_s": [1.0, 2.0, 3.0, 4.0],
    "stages/<b>\x1b_p90_s": [2.0, 3.0, 4.0, 5.0],
}


def drawn(tmp_path: Path) -> dict[str, tuple[Any, Any]]:
    """Figure and its parsed drawing (with the legend) by id."""
    made = [
        asdict(figure) for figure in figures([read_curves(a_run(tmp_path / "r", STEPS, {0: {"v": [1.0]}}, METRICS))])
    ]
    return {figure["id"]: (figure, ElementTree.fromstring(f"<div>{draw(figure)}</div>")) for figure in made}


def marks(tree: Any) -> list[tuple[float, float, str]]:
    """Place and words of each mark of the drawing itself."""
    found = []
    for mark in tree.iterfind(".//path[@transform]"):
        x, y = re.findall(r"[-\d.]+", mark.get("transform"))
        found.append((float(x), float(y), mark.findtext("title")))
    return found


def test_values_stand_at_their_places(tmp_path: Path) -> None:
    _, tree = drawn(tmp_path)["entropy"]
    points = marks(tree)
    assert [words for *_, words in points] == [
        f"step {step}, train/entropy {value:.7g}" for step, value in enumerate(METRICS["train/entropy"], 1)
    ]
    (_, first, _), (_, second, _), (_, third, _), (_, fourth, _) = points
    assert fourth < first < second < third  # upwards is less
    assert first - second == pytest.approx(second - third, abs=0.2)
    assert points[1][0] - points[0][0] == pytest.approx(points[3][0] - points[2][0], abs=0.2)


def test_what_a_logarithm_does_not_know_is_a_gap(tmp_path: Path) -> None:
    _, tree = drawn(tmp_path)["gap"]
    points = marks(tree)
    assert len(points) == 2
    (line,) = (path.get("d") for path in tree.iterfind(".//path[@class='line c0']") if path.get("d").count("M") > 1)
    assert "L" not in line
    labels = {text.text for text in tree.iterfind(".//text")}
    assert {"1e-06", "0.0001"} <= labels


def test_bands_bars_and_flat_lines(tmp_path: Path) -> None:
    made = drawn(tmp_path)
    _, reward = made["reward"]
    (band,) = reward.iterfind(".//path[@fill-opacity]")
    assert band.get("d").count("L") == 2 * len(STEPS) - 1
    _, stages = made["stages"]
    (bars,) = (path.get("d") for path in stages.iterfind(".//path[@class='bar c0']"))
    assert bars.count("M") == len(STEPS)
    _, flat = made["correlation"]
    assert len(marks(flat)) == len(STEPS)
    assert all(math.isfinite(y) for _, y, _ in marks(flat))


def test_text_stays_text(tmp_path: Path) -> None:
    figure, tree = drawn(tmp_path)["stages"]
    assert "\x1b" not in draw(figure)
    assert "<b>" not in draw(figure)
    assert any("<b>␛" in (item.text or "") + "".join(item.itertext()) for item in tree.iterfind(".//li"))


@pytest.mark.parametrize("values", [[None, None], [0.0, 0.0], [-5.0, -5.0], [1e-300, 1e300], [float("nan"), 1.0]])
@pytest.mark.parametrize("axis", [{}, {"type": "log"}, {"rangemode": "tozero"}])
def test_odd_values_can_be_drawn(values: list[float | None], axis: dict[str, Any]) -> None:
    trace = {
        "mode": "lines+markers",
        "x": [1, 2],
        "y": values,
        "name": "n",
        "text": ["a", "b"],
        "line": {"width": 2, "dash": "dot", "color": "colour:7"},
        "marker": {"symbol": "x", "color": "colour:7"},
    }
    text = draw({"title": "t", "y_title": "u", "traces": [trace], "y_axis": axis})
    assert "nan" not in text.lower().replace("dominant", "")
    ElementTree.fromstring(f"<div>{text}</div>")


def test_many_values_are_a_curve_without_marks() -> None:
    """A page of a thousand steps stays small, and no step is lost from the curve."""
    count = 1000
    trace = {
        "x": list(range(count)),
        "y": [math.sin(step / 50) for step in range(count)],
        "name": "n",
        "text": ["a"] * count,
        "line": {"width": 2, "dash": "dot", "color": "colour:0"},
        "marker": {"symbol": "x", "color": "colour:0"},
    }
    joined = draw({"title": "t", "y_title": "u", "traces": [trace | {"mode": "lines+markers"}], "y_axis": {}})
    assert (joined.count("<title>"), len(joined) < 20 * count) == (0, True)
    (path,) = re.findall(r'class="line c0" stroke-dasharray="2 3" d="(M[^"]*L[^"]*)"', joined)
    assert path.count("L") == count - 1
    apart = draw({"title": "t", "y_title": "u", "traces": [trace | {"mode": "markers"}], "y_axis": {}})
    (dots,) = re.findall(r'class="dots c0" d="([^"]*)"', apart)
    assert dots.count("h0") == count


def test_what_is_nothing_all_along_stands_at_the_bottom() -> None:
    trace = {"mode": "lines", "x": [1, 2], "y": [0.0, 0.0], "name": "n", "line": {"width": 2, "color": "colour:0"}}
    text = draw({"title": "t", "y_title": "u", "traces": [trace], "y_axis": {}})
    labels = re.findall(r'text-anchor="end">([^<]*)<', text)
    assert (labels[0], labels[-1]) == ("0", "1")
