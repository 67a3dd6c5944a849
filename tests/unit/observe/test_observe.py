"""Progress, summary and alarms from records alone."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from engine.core.records import StepRecord
from engine.observe.observer import Observer
from engine.observe.progress import PlainProgress, RichProgress
from engine.observe.summary import slope_t, summarise
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer


def test_slope_t_matches_a_known_regression() -> None:
    # y = 1, 2, 2, 4: slope 0.9, residual sum of squares 0.7, so t = 0.9 / sqrt(0.7 / 2 / 5)
    assert slope_t([1.0, 2.0, 2.0, 4.0]) == pytest.approx(0.9 / (0.35 / 5) ** 0.5)
    assert slope_t([1.0, 2.0]) is None
    assert slope_t([0.0, 0.0, 0.0]) is None


def test_plain_progress_speaks_at_each_phase_and_in_long_silences() -> None:
    stream = io.StringIO()
    with PlainProgress(stream, interval_s=0.05) as progress:
        progress.phase("rollout", 0, 4, "")
        progress.phase("rollout", 1, 4, "kept 1")
        deadline = time.monotonic() + 5
        while stream.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        progress.phase("rollout", 4, 4, "kept 4")
        progress.phase("train", 0, 1, "")
    lines = stream.getvalue().splitlines()
    assert sum("rollout 1/4" in line for line in lines) >= 1
    assert "rollout 4/4 · kept 4" in lines[-2]
    assert lines[-1].endswith("train 0/1")


def test_summary_has_the_contract_keys(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path)
    writer = Writer(layout)
    for step, reward in enumerate((0.0, 0.5)):
        metrics = {
            "reward/mean": reward,
            "alignment/pearson_r": 0.99999,
            "alignment/kl": 1e-9,
            "alignment/max_abs_dlogp": 1e-5 * (step + 1),
            "tokens/sampled": 10.0,
            "tokens/trained": 10.0,
        }
        writer.step(StepRecord(step=step, policy_version=step + 1, metrics=metrics))
    summary = summarise(Reader(layout), 3.0)
    assert summary["steps"] == 2
    assert summary["trials"] == {"started": 0, "kept": 0, "excluded": {}}
    assert summary["reward"] == {"first": 0.0, "last": 0.5, "slope_t": None, "by_step": [0.0, 0.5]}
    assert summary["alignment"] == {"pearson_r_median": 0.99999, "kl_median": 1e-9, "max_abs_dlogp": 2e-5}
    assert summary["tokens"] == {"sampled": 20, "trained": 20}
    assert summary["wall_s"] == 3.0


@pytest.mark.parametrize(
    ("metrics", "alarm"),
    [
        ({"alignment/pearson_r": 0.5, "alignment/tokens": 9.0}, "0.5000 is below observe.correlation_alarm=0.99"),
        ({"alignment/tokens": 9.0}, "is not defined over 9 tokens"),
        ({"alignment/pearson_r": 0.999, "alignment/tokens": 9.0}, ""),
        ({"alignment/tokens": 1.0}, ""),
    ],
)
def test_a_correlation_that_is_low_or_undefined_is_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metrics: dict[str, float], alarm: str
) -> None:
    layout = Layout(root=tmp_path)
    observer = Observer(tensorboard=True, progress_interval_s=10.0, correlation_alarm=0.99)
    observer.start(layout)
    observer.step(StepRecord(step=0, policy_version=1, metrics=metrics), 1, Writer(layout))
    observer.stop()
    observer.stop()
    shown = capsys.readouterr().err
    assert len(list(layout.alerts.glob("*"))) == ("ALARM" in shown) == bool(alarm)
    assert alarm in shown
    assert len(list(layout.tensorboard.iterdir())) == 1


def test_bars_in_a_terminal() -> None:
    stream = io.StringIO()
    with RichProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        progress.phase("step 1/2 rollout", 3, 16, "kept 3, excluded 0")
        progress.say("trying e0-a-s0-a0 again: [sandbox] lost")
        progress.phase("step 1/2 train", 0, 1, "")
    shown = stream.getvalue()
    assert "step 1/2 rollout" in shown
    assert "3/16" in shown
    assert "kept 3, excluded 0" in shown
    assert "[sandbox] lost" in shown
