"""Summary, alarms and what a rollout shows, from records alone."""

import json
from pathlib import Path

import pytest
from learning_pieces import a_run
from samples_cases import scored

from engine.core.records import StepRecord, Termination
from engine.observe.curves import read_curves
from engine.observe.observer import Observer
from engine.observe.summary import slope_t, summarise
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer


def test_slope_t_matches_a_known_regression() -> None:
    # y = 1, 2, 2, 4: slope 0.9, residual sum of squares 0.7, so t = 0.9 / sqrt(0.7 / 2 / 5)
    assert slope_t([1.0, 2.0, 2.0, 4.0]) == pytest.approx(0.9 / (0.35 / 5) ** 0.5)
    assert slope_t([1.0, 2.0]) is None
    assert slope_t([0.0, 0.0, 0.0]) is None


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
    assert summary["learning"] == {"windows": (1, 1), "training": None, "held_out": None}


def test_summary_compares_the_last_steps_with_the_first(tmp_path: Path) -> None:
    held_out = {0: {"v": [0.0, 0.0]}, 3: {"v": [1.0, 0.0]}}
    layout = a_run(tmp_path / "r", [{"a": [0.0, None]}, {"a": [1.0, 0.0]}, {"a": [1.0, 1.0]}], held_out)
    summary = json.loads(json.dumps(summarise(Reader(layout), 3.0)))
    assert summary["trials"] == {"started": 10, "kept": 9, "excluded": {"sandbox_lost": 1}}
    learning = summary["learning"]
    assert learning["windows"] == [1, 2]
    assert learning["training"]["difference"] == 0.75
    assert learning["training"]["first"]["trials"] == 1
    assert learning["training"]["low"] < 0.75 < learning["training"]["high"]
    assert learning["held_out"]["difference"] == 0.5


def test_trials_of_a_quarantined_task_count_for_nothing(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [0.0, 1.0], "b": [1.0, None]}, {"a": [1.0, 1.0]}])
    assert read_curves(layout).rewards[0] == {"a": [0.0, 1.0], "b": [1.0]}
    ledger = Ledger(layout)
    for state in ("pending", "running", "finished", "excluded"):  # as `engine.run.quarantine` does
        ledger.move(0, [("train", "e0-b-s0-a0")], state, "its task is quarantined")  # type: ignore[arg-type]
    assert summarise(Reader(layout), 3.0)["trials"] == {
        "started": 6,
        "kept": 4,
        "excluded": {"quarantined": 1, "sandbox_lost": 1},
    }
    assert read_curves(layout).rewards[0] == {"a": [0.0, 1.0]}


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
    observer = Observer(tensorboard=True, progress_interval_s=10.0, correlation_alarm=0.99, report_every=4)
    observer.start(layout)
    record = StepRecord(step=0, policy_version=1, metrics=metrics)
    for _ in range(2):  # a step that is made again keeps the same alarm
        observer.judge(record, Writer(layout))
    observer.step(record, 1)
    observer.stop()
    observer.stop()
    shown = capsys.readouterr().err
    assert len(list(layout.alerts.glob("*"))) == ("ALARM" in shown) == bool(alarm)
    assert alarm in shown
    assert len(list(layout.tensorboard.iterdir())) == 1


def test_a_rollout_shows_what_runs_and_what_was_earned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer = Observer(tensorboard=False, progress_interval_s=60.0, correlation_alarm=0.99, report_every=4)
    observer.start(Layout(root=tmp_path))
    lost = scored(None, "b", 0, termination=Termination.SANDBOX_LOST)
    observer.trials("step 1/2 rollout", [], 3, lambda: "2 running (oldest 3 s in setup)")
    observer.trials("step 1/2 rollout", [scored(1.0, "a", 0), scored(0.0, "a", 1), lost], 3, lambda: "")
    observer.stop()
    first, last = capsys.readouterr().err.splitlines()
    assert "step 1/2 rollout 0/3 · 2 running (oldest 3 s in setup) | " in first
    assert "step 1/2 rollout 3/3 · excluded 1, reward 0.50 | " in last
