"""A correlation below 1 never reads as 1, wherever it is shown."""

import math
from pathlib import Path

import pytest
from learning_pieces import a_run

from engine.core.records import StepRecord
from engine.observe.curves import read_curves
from engine.observe.digits import below
from engine.observe.figures import figures
from engine.observe.headline import headline
from engine.observe.observer import Observer
from engine.ui.render import as_html

R = 0.999999999994


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (R, 7, "0.999999999994"),
        (0.99999, 6, "0.999990"),
        (1.0, 6, "1.000000"),
        (math.nextafter(1.0, 0.0), 7, "0.99999999999999989"),
        (-0.5, 4, "-0.5000"),
        (float("nan"), 4, "nan"),
    ],
)
def test_digits(value: float, decimals: int, text: str) -> None:
    assert below(value, decimals) == text


def test_a_value_below_another_bound() -> None:
    assert below(0.98996, 4, 0.99) == "0.989960"
    assert below(0.5, 4, 0.99) == "0.5000"


@pytest.mark.parametrize("value", [R, math.nextafter(1.0, 0.0)])
def test_reports_curves_and_progress(tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_curves(a_run(tmp_path, [{"a": [0.0]}] * 2, metrics={"alignment/pearson_r": [value] * 2}))
    (row,) = (row for row in headline([run])[1] if row[0] == "smallest Pearson r")
    assert float(row[1]) == pytest.approx(value, abs=1e-16)
    assert float(row[1]) < 1
    (figure,) = (one for one in figures([run]) if one.id == "correlation")
    assert all(float(text.rpartition(" ")[2]) < 1 for text in figure.traces[0]["text"])
    observer = Observer(tensorboard=False, progress_interval_s=1.0, report_every=1, correlation_alarm=0.99)
    said: list[str] = []
    monkeypatch.setattr(observer, "say", said.append)
    observer.step(StepRecord(step=0, policy_version=1, metrics={"alignment/pearson_r": value}), 1)
    assert float(said[0].rpartition(" r ")[2].split()[0]) < 1


@pytest.mark.parametrize("metric", ["alignment/pearson_r", "alignment/stale_pearson_r"])
def test_the_table_of_numbers(metric: str) -> None:
    page = {"run": "x", "steps": [0], "start": 0, "total": 1, "at_once": 9, "problems": [], "rows": {}}
    text = as_html("numbers.html", page | {"metrics": {metric: [R]}})
    assert "<td>0.999999999994</td>" in text
