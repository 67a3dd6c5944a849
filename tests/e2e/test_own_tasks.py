"""A user's own tasks from a command line: tried in the run's own sandbox and grader before a run may train on them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from calc_task import calc_draft

from engine.config.schemas import ROOT
from engine.tasks.harbor import write_task

OWN = ("experiment=mini_swe_agent_gspo", "model=tiny_qwen3_moe", "tasks=harbor", "schedule.prompts_per_step=9")


def engine(tasks: Path, runs: Path, *overrides: str) -> tuple[int, list[str]]:
    """Exit code and the lines that name `tasks` on standard error."""
    command = [sys.executable, "-m", "engine", *OWN, f"tasks.path={tasks}", f"run.root={runs}", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith(("tasks.", "schedule."))]


def test_a_task_whose_reference_fails_ends_prepare_and_is_not_trained_on(tmp_path: Path) -> None:
    tasks, runs = tmp_path / "tasks", tmp_path / "runs"
    draft = calc_draft()
    where = f"calc in {tmp_path}"  # in no cache of an earlier run of this test
    good = replace(draft, instruction=f"Mend add, {where}.\n")
    bad = replace(draft, instruction=f"Mend mul, {where}.\n", reference=replace(draft.reference, changes=()))
    solved = replace(good, repository={**good.repository, "calc/__init__.py": (b"from calc.fixed import *\n", False)})
    fixed = (b"def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n", False)
    solved = replace(solved, repository={**solved.repository, "calc/fixed.py": fixed})
    for name, one in (("good", good), ("bad", bad), ("solved", solved)):
        write_task(one, tasks / name)

    prepared, named = engine(tasks, runs, "job=prepare")
    way_out = "mend the task, or move its folder away; then job=prepare"
    problem = "its reference does not pass (tests/test_calc.py::test_add failed)"
    solved_problem = "its tests pass without any change, so there is nothing to solve"
    assert (prepared, named) == (
        2,
        [
            f"tasks.path='{tasks}': task bad: {problem}; {way_out}",
            f"tasks.path='{tasks}': task solved: {solved_problem}; {way_out}",
        ],
    )
    trained, named_again = engine(tasks, runs)
    assert (trained, named_again) == (2, named)
    (tasks / "bad").rename(tmp_path / "bad")
    (tasks / "solved").rename(tmp_path / "solved")
    assert engine(tasks, runs, "job=prepare") == (0, [])

    # what is left holds, and is too little for a batch
    trained, named = engine(tasks, runs)
    assert trained == 2
    assert named == [
        "schedule.prompts_per_step=9: the pool has 1 training tasks, so no batch is ever full; "
        "lower it, add tasks, or set schedule.drop_last=false"
    ]
    assert engine(tasks, runs, "tasks.validation=[good]") == (
        2,
        [
            "tasks.validation=['good']: all tasks of the pool are held out, so none is left to train on; "
            "hold fewer out, or add tasks"
        ],
    )
    assert not runs.exists()
