"""The scripted solver and the gate, on tasks made by hand."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples_cases import scored as judged
from samples_cases import task, trial

from engine.core.errors import ConfigError
from engine.core.patch import difference
from engine.core.records import Scored, Task, Trial
from engine.run import demonstrations, warm_start
from engine.run.demonstrations import read_repairs, script
from engine.run.gate import Goals, gate, gate_lines
from engine.train.warm_start import Demonstrations, WarmStarted

CALLS = [
    {
        "text": "I try {repair}",
        "name": "edit",
        "arguments": {"path": "{workdir}/{path}", "lines": ["{buggy}", "{repair}"], "braces": "{other} {"},
    },
    {"text": "", "name": "finish", "arguments": {"count": 3}},
]
HARNESSES: Any = {"openhands": SimpleNamespace(demonstration=CALLS)}
GOALS = Goals(valid_calls=0.95, junk=0.1, solve=(0.25, 0.5))
BASE = "def f(a):\n    if a > 1:\n        return a\n"


@pytest.fixture
def broken(tmp_path: Path) -> Task:
    """A task on disk: one wrong line, two other wrong ones known."""
    facts = {"path": "m.py", "buggy": "    if a > 1:", "right": "    if a >= 1:", "wrong": ["if a < 1:", "if a == 1:"]}
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution/repairs.json").write_text(json.dumps(facts))
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/m.py").write_text(BASE)
    return dataclasses.replace(task("t"), directory=tmp_path, repository=tmp_path / "repository")


def trials(of: Task, count: int) -> list[Trial]:
    return [dataclasses.replace(trial("t", sample), task=of) for sample in range(count)]


def test_the_solver_speaks_the_harness_s_calls_with_the_line_put_in(broken: Task) -> None:
    turns = script(trials(broken, 1), HARNESSES, 1.0, seed=0)
    ((edit, finish),) = turns.values()
    assert edit.calls[0].arguments == {
        "path": "/testbed/m.py",
        "lines": ["if a > 1:", "if a >= 1:"],
        "braces": "{other} {",
    }
    assert edit.text == "I try if a >= 1:"
    assert finish.calls[0].name == "finish"
    assert finish.calls[0].arguments == {"count": 3}


def test_the_solver_is_right_as_often_as_it_is_told_and_the_same_each_time(broken: Task) -> None:
    turns = script(trials(broken, 300), HARNESSES, 0.3, seed=0)
    lines = [said[0].calls[0].arguments["lines"][1] for said in turns.values()]
    assert 60 < lines.count("if a >= 1:") < 120
    assert {"if a < 1:", "if a == 1:", "if a >= 1:"} == set(lines)
    assert turns == script(trials(broken, 300), HARNESSES, 0.3, seed=0)
    assert turns != script(trials(broken, 300), HARNESSES, 0.3, seed=1)


def test_a_task_without_known_repairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks='t': repairs.json is missing.*tasks=laptop"):
        read_repairs(dataclasses.replace(task("t"), directory=tmp_path))


def attempt(of: Task, after: str | None, *, solved: bool = False) -> Scored:
    base = {"m.py": (BASE.encode(), False)}
    changed = {} if after is None else {"m.py": (after.encode(), False)}
    one = judged(float(solved))
    assert one.verdict is not None
    trajectory = dataclasses.replace(
        one.trajectory,
        trial=dataclasses.replace(one.trajectory.trial, task=of),
        patch=difference(base, changed),
        exchanges=(),
    )
    return Scored(trajectory=trajectory, verdict=dataclasses.replace(one.verdict, resolved=solved))


def test_the_gate_tells_right_wrong_and_junk_by_the_patch(broken: Task) -> None:
    right, wrong = BASE.replace("> 1", ">= 1"), BASE.replace("> 1", "< 1")
    report: Any = gate(
        [
            attempt(broken, right, solved=True),
            attempt(broken, wrong),
            attempt(broken, BASE),
            attempt(broken, None),
            attempt(broken, wrong + "\n"),
        ],
        GOALS,
    )
    assert report["outcomes"] == {"right": 1, "wrong": 1, "junk": 3}
    assert report["junk"] == {"value": 0.6, "goal": "<= 0.1", "met": False}
    assert report["solve"] == {"value": 0.2, "goal": "0.25 to 0.5", "met": False}
    assert any("junk 0.600" in line and "NOT met" in line for line in gate_lines(report))


def test_the_gate_says_what_was_not_measured() -> None:
    report: Any = gate([], GOALS)
    for name in ("valid_calls", "junk", "solve"):
        assert (report[name]["value"], report[name]["met"]) == (None, False)
        assert f"gate: {name} not measured" in gate_lines(report)


def test_another_player_makes_another_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the solver's own code decides is in the fingerprint: a cached checkpoint is not another recipe's."""
    bound: list[str] = []

    class Model(WarmStarted):
        def __init__(self) -> None:
            self.demonstrations = Demonstrations(samples_per_task=1, right_share=0.5)

        def bind(self, fingerprint: str) -> None:
            bound.append(fingerprint)

    pool = SimpleNamespace(problems=list, load=lambda: (task("t"),))
    built: Any = SimpleNamespace(model=Model(), tasks=pool, harnesses={}, config={"harnesses": {}}, seed=0)
    assert warm_start.bind(built)
    changed = tmp_path / "demonstrations.py"
    changed.write_bytes(Path(demonstrations.__file__).read_bytes() + b"# one line more\n")
    monkeypatch.setattr(demonstrations, "__file__", str(changed))
    assert warm_start.bind(built)
    assert len(set(bound)) == 2
