"""The learning report of made-up stores: its numbers, what stands beside what, and that no text can leave its place."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from learning_pieces import a_run

from engine.core.errors import ConfigError, RunError
from engine.observe.curves import check_runs, read_curves
from engine.observe.estimates import estimate, wilson
from engine.observe.headline import headline
from engine.observe.learning import page, told_apart, write_report
from engine.store.layout import Layout
from engine.store.state import StateFile

TEN = [{"a": [float(step > 4), 0.0], "b": [0.0, float(step > 7), None]} for step in range(10)]
METRICS = {
    "train/entropy": [1.0 + step / 10 for step in range(10)],
    "loss/kl": [step * 1e-4 for step in range(10)],
    "clip_fraction/low": [0.25] * 10,
    "calls/valid": [0.5, *[0.9] * 9],
    "alignment/pearson_r": [0.99999, 0.9999, *[0.999999] * 8],
    "alignment/max_abs_dlogp": [1e-6, 3e-5, *[2e-6] * 8],
    "tokens/sampled": [10.0] * 10,
    "tokens/trained": [10.0] * 10,
    "stages/agent_p50_s": [2.0] * 10,
    "stages/agent_p90_s": [3.0] * 10,
    "trials/kept": [4.0] * 10,
    "trials/excluded": [1.0] * 10,
}


def drawn(text: str) -> dict[str, Any]:
    """The page's figures by id."""
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return {figure["id"]: figure for figure in json.loads(data)}


def numbers(layout: Layout) -> dict[str, str]:
    _, rows = headline([read_curves(layout)])
    return {row[0]: row[1] for row in rows}


def test_rewards_are_read_by_task_without_excluded_trials(tmp_path: Path) -> None:
    run = read_curves(a_run(tmp_path / "r", TEN, {10: {"v": [1.0, 0.0]}}))
    assert run.rewards[0] == {"a": [0.0, 0.0], "b": [0.0, 0.0]}
    assert run.rewards[9] == {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    assert [one is not None for one in run.validation] == [False] * 10 + [True]


def test_the_first_four_steps_against_the_last_six(tmp_path: Path) -> None:
    run = read_curves(a_run(tmp_path / "r", TEN))
    assert run.windows == (4, 6)
    assert run.learned is not None
    assert (run.learned.first.mean, run.learned.first.trials) == (0.0, 16)
    assert (run.learned.last.mean, run.learned.last.trials) == (pytest.approx(7 / 24), 24)
    assert run.learned.difference == pytest.approx(7 / 24)
    assert run.learned.low < 7 / 24 < run.learned.high


@pytest.mark.parametrize(("steps", "windows"), [(1, (0, 1)), (2, (1, 1)), (3, (1, 2)), (7, (3, 4)), (9, (4, 5))])
def test_the_windows_of_short_runs_do_not_overlap(tmp_path: Path, steps: int, windows: tuple[int, int]) -> None:
    run = read_curves(a_run(tmp_path / "r", TEN[:steps]))
    assert run.windows == windows
    assert (run.learned is None) == (steps == 1)


def test_the_headline(tmp_path: Path) -> None:
    held_out = {0: {"v": [0.0] * 4, "w": [0.0] * 4}, 10: {"v": [0.0] * 4, "w": [1.0] * 4}}
    shown = numbers(a_run(tmp_path / "r", TEN, held_out, METRICS))
    low, high = wilson(0.0, 16)
    assert shown["steps"] == "10 of 24, rollout"
    assert shown["reward at the start"] == f"0.000 ({low:.3f} to {high:.3f}), 16 trials of 2 tasks, steps 1 to 4"
    assert shown["reward at the end"].endswith("24 trials of 2 tasks, steps 5 to 10")
    assert shown["difference"].startswith("+0.292 (")
    assert shown["held-out solve rate, first"].endswith("8 trials of 2 tasks, before step 1")
    assert shown["held-out solve rate, last"].endswith("8 trials of 2 tasks, after step 10")
    assert shown["held-out solve rate, last"].startswith("0.500 (")
    assert shown["held-out difference"].startswith("+0.500 (")
    assert shown["entropy, nats"] == "1.000 → 1.900"
    assert shown["answers with valid calls"] == "50.0% → 90.0%"
    assert shown["smallest Pearson r"] == "0.9999000"
    assert shown["largest |Δ log p|"] == "3.0e-05"
    assert shown["tokens sampled / trained"] == "100 / 100 (equal at every step)"
    assert shown["training trials kept / excluded"] == "40 / 10"
    assert "reward" not in shown
    StateFile(Layout(root=tmp_path / "r")).update("finished", steps=10)
    assert numbers(Layout(root=tmp_path / "r"))["steps"] == "10"


def test_tokens_that_differ_at_any_step_are_not_called_equal(tmp_path: Path) -> None:
    metrics = {"tokens/sampled": [10.0, 10.0], "tokens/trained": [11.0, 9.0]}
    assert numbers(a_run(tmp_path / "r", TEN[:2], metrics=metrics))["tokens sampled / trained"] == "20 / 20"


def test_the_page_draws_what_the_store_holds(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN, {10: {"v": [1.0, 0.0]}}, METRICS)
    assert write_report(layout) == layout.root / "reports" / "learning.html"
    text = layout.learning.read_text()
    figures = drawn(text)
    assert set(figures) == {
        "reward",
        "held-out",
        "entropy",
        "kl",
        "clip",
        "calls",
        "correlation",
        "gap",
        "tokens",
        "stages",
    }
    low, high, mean, running = figures["reward"]["traces"]
    expected = [estimate({task: [v for v in some if v is not None] for task, some in step.items()}) for step in TEN]
    assert mean["x"] == list(range(1, 11))
    assert mean["y"] == [one.mean for one in expected if one]
    assert low["y"] == [one.low for one in expected if one]
    assert high["y"] == [one.high for one in expected if one]
    assert running["y"][9] == pytest.approx(sum(mean["y"][5:]) / 5)
    assert running["y"][1] == pytest.approx(sum(mean["y"][:2]) / 2)
    (held_out,) = figures["held-out"]["traces"]
    assert (held_out["x"], held_out["y"]) == ([10], [0.5])
    assert held_out["y"][0] + held_out["error_y"]["array"][0] == pytest.approx(wilson(0.5, 2)[1])
    (entropy,) = figures["entropy"]["traces"]
    assert entropy["y"] == METRICS["train/entropy"]
    (agent,) = figures["stages"]["traces"]
    assert (agent["y"][0], agent["error_y"]["array"][0]) == (2.0, 1.0)
    for name in METRICS:  # one table of all
        assert f"<tr><th>{name}</th>" in text
    assert f"+{7 / 24:.3f}" in text


def test_every_figure_is_one_that_plotly_takes(tmp_path: Path) -> None:
    from plotly.graph_objects import Figure

    runs = [read_curves(a_run(tmp_path / name, TEN, {10: {"v": [1.0, 0.0]}}, METRICS)) for name in "ab"]
    for figure in drawn(page(runs)).values():
        text = re.sub(r'"colour:[^"]*"', '"#0072B2"', json.dumps(figure["traces"]))
        Figure(data=json.loads(text), layout={"yaxis": {"title": {"text": figure["y_title"]}, **figure["y_axis"]}})


def test_agreement_is_a_flat_line_and_not_its_last_digits(tmp_path: Path) -> None:
    """Without a span of its own the axis would label every tick 1.0000000."""
    run = a_run(tmp_path, TEN, metrics={"alignment/pearson_r": [1.0 - step * 1e-12 for step in range(10)]})
    lowest, highest = drawn(page([read_curves(run)]))["correlation"]["y_axis"]["autorangeoptions"]["include"]
    assert lowest == 0.9999
    assert highest >= 1


def test_runs_stand_beside_each_other(tmp_path: Path) -> None:
    run = a_run(tmp_path / "real", TEN, metrics=METRICS)
    placebo = a_run(tmp_path / "placebo", [{"a": [0.0], "b": [1.0]}] * 3, metrics={"train/entropy": [1.0, 1.0, 1.0]})
    write_report(run, [placebo])
    text = run.learning.read_text()
    assert not placebo.learning.exists()
    entropy = drawn(text)["entropy"]["traces"]
    assert [trace["name"] for trace in entropy] == ["real", "placebo"]
    looks = {(trace["line"]["color"], trace["marker"]["symbol"]) for trace in entropy}
    assert len(looks) == 2
    heads, rows = headline([read_curves(run), read_curves(placebo)])
    assert heads == ["", "real", "placebo"]
    assert ["entropy, nats", "1.000 → 1.900", "1.000 → 1.000"] in rows
    assert "<th>placebo</th>" in text


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    layouts = [a_run(tmp_path / folder / "run", TEN[:1]) for folder in ("x", "y")]
    named = told_apart([read_curves(layout) for layout in layouts], layouts)
    assert [run.name for run in named] == ["x/run", "y/run"]
    layouts += [a_run(tmp_path / folder, TEN[:1]) for folder in ("z/x/run", "other")]
    named = told_apart([read_curves(layout) for layout in layouts], layouts)
    assert [run.name for run in named] == [f"{tmp_path.name}/x/run", "y/run", "z/x/run", "other"]


def test_a_number_that_is_not_finite_is_a_gap_in_its_curve(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN[:2], metrics={"loss/kl": [1e-4, float("inf")]})
    write_report(layout)
    text = layout.learning.read_text()
    assert drawn(text)["kl"]["traces"][0]["y"] == [1e-4, None]
    assert "<td>inf</td>" in text


def test_steps_without_a_kept_trial_are_not_compared(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [None]}, {"a": [1.0]}, {"a": [0.0]}])
    write_report(layout)
    assert "No trial of the first 1 or of the last 2 steps was kept" in layout.learning.read_text()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_has_just_begun(tmp_path: Path, steps: int) -> None:
    layout = a_run(tmp_path / "r", TEN[:steps])
    write_report(layout)
    text = layout.learning.read_text()
    assert ("No step is finished yet." if steps == 0 else "nothing to compare it with") in text
    assert list(drawn(text)) == ["reward"] * steps


def test_trials_of_a_step_in_progress_change_nothing(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN)
    before = read_curves(layout)
    layout.step(9).unlink()
    assert len(read_curves(layout).rewards) == 9
    assert read_curves(layout).rewards == before.rewards[:9]


EVIL = "</script><img src=x onerror=alert(1)>&\u2028"


def test_no_text_leaves_its_place(tmp_path: Path) -> None:
    hidden = EVIL.replace("/", "\N{DIVISION SLASH}")
    metrics = {"train/entropy": [1.0], f"stages/{EVIL}_p50_s": [1.0], f"stages/{EVIL}_p90_s": [2.0]}
    layout = a_run(tmp_path / hidden, [{EVIL.replace("/", "~"): [1.0, 0.0]}], metrics=metrics)
    write_report(layout)
    text = layout.learning.read_text()
    ours = text.replace(plotly_script(), "")
    assert "<img" not in ours
    assert ours.count("<script") == ours.count("</script") == 3
    # Plotly reads HTML in its texts: what it is given is escaped once more
    for figure in drawn(text).values():
        for trace in figure["traces"]:
            assert "<img" not in json.dumps(trace)


def plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def test_the_page_is_one_file_that_asks_nothing_of_others(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN, {10: {"v": [1.0, 0.0]}}, METRICS)
    write_report(layout)
    text = layout.learning.read_text()
    script = plotly_script()
    assert text.count(script) == 1
    ours = text.replace(script, "")
    assert len(ours) < 60_000
    assert "default-src 'none'" in ours
    assert not re.findall(r"https?://|\bsrc=|<link|@import|url\(", ours)
    assert [path.name for path in layout.learning.parent.iterdir()] == ["learning.html"]


def test_a_damaged_step_is_named(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN[:2])
    layout.step(1).write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"step=000001.parquet is damaged"):
        write_report(layout)
    assert not layout.learning.exists()


def test_folders_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    run, other = a_run(tmp_path / "r", TEN[:1]).root, tmp_path / "other"
    other.mkdir()
    check_runs("job.runs", [run])
    for folders, problem in (
        ([run, tmp_path / "gone"], "there is no such folder"),
        ([run, other], "this folder holds no run"),
        ([run, tmp_path / "other" / ".." / "r"], "named twice"),
    ):
        with pytest.raises(ConfigError, match=problem) as found:
            check_runs("job.runs", folders)
        assert str(folders[1]) in str(found.value)


def test_another_programs_configuration_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("repos: []\n")
    with pytest.raises(ConfigError, match="this folder holds no run"):
        check_runs("job.runs", [tmp_path])
    (tmp_path / "config.yaml").write_text("configuration: {}\nconfiguration_hash: 0123\n")
    check_runs("job.runs", [tmp_path])


def test_a_damaged_number_of_steps_and_a_trial_without_its_columns_are_named(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", TEN[:1])
    foreign = layout.trials(0, "train") / "e0-x-s0-a0.parquet"
    pq.write_table(pa.table({"task": ["a"]}), foreign)
    with pytest.raises(RunError, match=r"e0-x-s0-a0.parquet is damaged \(KeyError: 'reward'\)"):
        read_curves(layout)
    foreign.unlink()
    layout.state.write_text(json.dumps(json.loads(layout.state.read_text()) | {"steps": "many"}))
    with pytest.raises(RunError, match=r"state.json is damaged"):
        read_curves(layout)
