"""Solve counts of made-up runs: which trials count, how pools stand beside each other, and what the page draws."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from learning_pieces import a_run
from samples_cases import scored

from engine.core.errors import RunError
from engine.core.records import Termination
from engine.observe.chosen import chosen
from engine.observe.difficulty import flags, page, table, write_page
from engine.observe.estimates import wilson
from engine.observe.solves import Difficulty, Measured, difficulty, measure, usual
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer

ONE = {"never": [0.0] * 4, "once": [0.0, 1.0, 0.0, 0.0], "always": [1.0] * 4, "lost": [1.0, None, 0.0, 0.0]}


def measured(layout: Layout, split: Any = "train") -> Measured:
    reader = Reader(layout)
    return measure(reader, chosen(reader, split, None), lambda _: None)


def shown(root: Path, *steps: Any, of: int = 4) -> Difficulty:
    return difficulty(measured(a_run(root, steps)), root.name, of)


def numbers(run: Difficulty) -> dict[str, tuple[int, int, int]]:
    return {one.task: (one.solved, one.of, one.excluded) for one in run.counts}


def test_kept_solved_and_excluded_by_task(tmp_path: Path) -> None:
    run = shown(tmp_path / "r", ONE)
    assert numbers(run) == {"never": (0, 4, 0), "once": (1, 4, 0), "always": (4, 4, 0), "lost": (1, 3, 1)}
    assert {one.run for one in run.counts} == {"r"}
    assert list(flags(run)) == [
        "r: never solved (1): never",
        "r: always solved (1): always",
        "r: fewer than 4 kept rollouts (1): lost (3 kept, 1 excluded)",
    ]


def test_a_task_is_counted_by_its_first_rollouts(tmp_path: Path) -> None:
    """The second step's policy is another; of a task that was not asked again nothing changes."""
    steps = {"a": [0.0, 0.0], "b": [None, 0.0]}, {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    layout = a_run(tmp_path / "r", steps)
    assert numbers(difficulty(measured(layout), "r", 2)) == {"a": (0, 2, 0), "b": (1, 2, 1)}
    assert numbers(difficulty(measured(layout), "r", 4)) == {"a": (2, 4, 0), "b": (2, 3, 1)}
    assert usual([measured(layout)]) == 2, "as many as a step asks"


def test_the_usual_number_is_the_smaller_of_two_that_are_as_common(tmp_path: Path) -> None:
    assert usual([measured(a_run(tmp_path / "r", [{"a": [0.0] * 3, "b": [0.0] * 2}]))]) == 2
    with pytest.raises(RunError, match="every trial of these runs was excluded"):
        usual([measured(a_run(tmp_path / "s", [{"a": [None]}]))])


def test_an_attempt_that_was_kept_takes_the_place_of_one_that_was_lost(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [None, 0.0]}])
    Writer(layout).trial(0, scored(1.0, "a", 0, attempt=1))
    Writer(layout).trial(0, scored(None, "a", 2, attempt=0, termination=Termination.SANDBOX_LOST))
    Writer(layout).trial(0, scored(None, "a", 2, attempt=1, termination=Termination.SANDBOX_LOST))
    assert numbers(difficulty(measured(layout), "r", 4)) == {"a": (1, 2, 1)}


def test_what_the_run_itself_excluded_counts_for_nothing(tmp_path: Path) -> None:
    """A task whose reward says nothing is quarantined after its trials were graded."""
    layout = a_run(tmp_path / "r", [{"a": [1.0, 1.0], "b": [1.0]}])
    ledger = Ledger(layout)
    for entry in [("train", "e0-a-s0-a0"), ("train", "e0-a-s1-a0")]:
        for state in ("pending", "running", "finished", "excluded"):
            ledger.move(0, [entry], state)  # type: ignore[list-item, arg-type]
    assert numbers(difficulty(measured(layout), "r", 1)) == {"a": (0, 0, 2), "b": (1, 1, 0)}


def test_a_trial_that_a_live_run_takes_back_is_passed_over_and_a_damaged_one_told(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [1.0, 0.0]}])
    reader = Reader(layout)
    trials = chosen(reader, None, None)
    Writer(layout).forget_trial(0, scored(1.0, "a", 0).trajectory.trial)
    done: list[int] = []
    assert [len(task.rollouts) for task in measure(reader, trials, done.append).tasks] == [1]
    assert done == [1, 2]
    (layout.trials(0, "train") / "e0-a-s1-a0.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"e0-a-s1-a0\.parquet is damaged"):
        measured(layout)


def test_a_changed_task_is_another(tmp_path: Path) -> None:
    layout = a_run(tmp_path / "r", [{"a": [1.0]}])
    one = scored(0.0, "a", 1)
    task = dataclasses.replace(one.trajectory.trial.task, fingerprint="changed")
    trial = dataclasses.replace(one.trajectory.trial, task=task, policy_version=7)
    Writer(layout).trial(0, dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, trial=trial)))
    counts = difficulty(measured(layout), "r", 1).counts
    assert {(count.task, count.fingerprint == "changed", count.solved, count.policy_versions) for count in counts} == {
        ("a", False, 1, (3, 3)),
        ("a", True, 0, (7, 7)),
    }


def test_pools_side_by_side(tmp_path: Path) -> None:
    pools = {"one": ONE, "two": {"never": [0.0] * 4}, "no": {"x": [1.0]}}
    runs = [shown(tmp_path / name, rewards) for name, rewards in pools.items()]
    heads, rows = table(runs, bars=True)
    cells = {row[0]: row[1:] for row in rows}
    assert heads == ["", "one", "two", "no"]
    assert cells["tasks"] == ["4", "1", "1"]
    assert cells["with fewer than 4 kept rollouts"] == ["1", "0", "1"]
    assert cells["rollouts excluded"] == ["1", "0", "0"]
    assert cells["mean pass rate"][0].startswith("0.417 (") and "12 trials of 3 tasks" in cells["mean pass rate"][0]
    assert cells["mean pass rate"][2] == "–"
    low, high = wilson(1 / 3, 3)
    third = f"33.3% ({low:.1%} to {high:.1%}), 1 task"
    assert cells["solved 0 of 4"][0] == f"{'█' * 7:<20} {third}"
    assert [number for number in range(5) if cells[f"solved {number} of 4"][0].endswith(third)] == [0, 1, 4]
    assert cells["solved 0 of 4"][1].startswith("█" * 20 + " 100.0% (")
    assert cells["solved 0 of 4"][2] == "–"


def test_the_page_draws_the_shares_and_lists_every_task(tmp_path: Path) -> None:
    from plotly.graph_objects import Figure

    one, none = shown(tmp_path / "<one>", ONE), shown(tmp_path / "no", {"x": [1.0]})
    layout = Layout(root=tmp_path / "<one>")
    write_page(layout, [one, none])
    text = layout.difficulty.read_text()
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    (figure,) = json.loads(data)
    (trace,) = figure["traces"]
    assert trace["x"] == [0, 1, 2, 3, 4]
    assert trace["y"] == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 3])
    assert trace["y"][0] + trace["error_y"]["array"][0] == pytest.approx(wilson(1 / 3, 3)[1])
    assert trace["y"][2] - trace["error_y"]["arrayminus"][2] == pytest.approx(0)
    assert trace["name"] == "&lt;one&gt;"
    Figure(data=json.loads(re.sub(r'"colour:[^"]*"', '"#0072B2"', json.dumps(figure["traces"]))))
    assert "<tr><th>lost</th><td>1</td><td>3</td><td>1</td><td>3</td></tr>" in text
    assert "of 3 tasks 1 never solved, 1 always" in text
    assert "<one>" not in text
    assert "No task has 4 kept rollouts yet." in page([none])
