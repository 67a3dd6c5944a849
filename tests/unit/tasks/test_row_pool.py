"""The pool of rows: what is made of them, what is tried, what is loaded, and what is said of the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_rows import SWE_BENCH, SWE_REBENCH_2, SWE_SMITH
from test_harbor_pool import Verifier
from test_row_directories import BASE, clone

from engine.core.errors import ConfigError, ConfigErrors, RunError
from engine.core.records import Patch, Task, Verdict
from engine.core.task_contracts import AuditedPool
from engine.tasks.row_pool import TaskRows

IMAGE = {"name": "calc", "suite": "bookworm", "packages": ["python3"], "pip": []}
LIMITS = {"agent_timeout_s": 60.0, "grade_timeout_s": 30.0, "memory_mb": 512, "cpus": 1.0}


class Choosy(Verifier):
    """Resolves every reference but those of some tasks."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused

    async def grade(self, task: Task, patch: Patch, runtime: Any, images: Any, name: str) -> Verdict:
        self.answers[True] = task.id not in self.refused
        return await super().grade(task, patch, runtime, images, name)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskRows:
    """Two tasks of one repository, one of another that is not here, one in C."""
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    commit = clone(tmp_path / "clones/owner__calc", BASE)
    rows = [
        {**SWE_BENCH, "base_commit": commit},
        {**SWE_BENCH, "instance_id": "owner__calc-2", "base_commit": commit, "problem_statement": "another issue"},
        {**SWE_BENCH, "instance_id": "elsewhere", "repo": "a/b"},
        {**SWE_BENCH, "instance_id": "in_c", "patch": SWE_BENCH["patch"].replace(".py", ".c")},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return pool(tmp_path)


def pool(folder: Path, **changes: Any) -> TaskRows:
    settings: dict[str, Any] = {
        "path": str(folder / "rows.jsonl"),
        "format": None,
        "split": None,
        "ids": [],
        "repositories": [],
        "limit": None,
        "bad_rows": "refuse",
        "checkouts": str(folder / "clones"),
        "validation": [],
        "limits": LIMITS,
        "image": IMAGE,
    }
    return TaskRows(**settings | changes)


async def prepared(one: TaskRows, verifier: Verifier) -> list[str]:
    """What was said, as `job=prepare` does it."""
    said: list[str] = []
    await one.prepare(said.append)
    if one.problems():
        await one.audit(None, None, verifier, said.append)  # type: ignore[arg-type]
    return said


async def test_tasks_that_hold_are_loaded_and_the_others_named(made: TaskRows) -> None:
    assert isinstance(made, AuditedPool)
    assert [problem.problem for problem in made.problems()] == ["its tasks are not built here"]
    with pytest.raises(ConfigError, match="not built here; run the same command with job=prepare"):
        made.load()
    said = await prepared(made, Choosy("owner__calc-2"))
    assert made.problems() == []
    (task,) = made.load()
    assert (task.id, task.split, task.memory_mb) == ("owner__calc-1", "train", 512)
    assert task.image == made.images()[0]
    built = json.loads((made.directory / "pool.json").read_text())
    assert built["repositories"] == {"owner__calc-1": "owner/calc", "owner__calc-2": "owner/calc"}
    assert "holds no clone of a/b" in built["not_run_here"]["elsewhere"]
    assert built["not_run_here"]["in_c"] == "it is written in c; the verifier runs pytest"
    tried = json.loads((made.directory / "tried.json").read_text())
    assert tried["owner__calc-1"] == ""
    assert tried["owner__calc-2"].startswith("its reference does not pass (tests/test_core.py::test_add failed)")
    assert "tasks:       2  of them made task directories" in said
    assert said[-1].startswith("tasks: 1 of 2 hold; ")


async def test_what_is_made_and_tried_is_not_made_or_tried_again(made: TaskRows, tmp_path: Path) -> None:
    await prepared(made, Verifier())
    directory = made.directory / "tasks/owner__calc-1"
    before = directory.stat().st_mtime_ns
    again = Verifier()
    await prepared(pool(tmp_path), again)
    assert (directory.stat().st_mtime_ns, again.graded) == (before, [])


async def test_a_clone_that_comes_later_adds_its_tasks(made: TaskRows, tmp_path: Path) -> None:
    await prepared(made, Verifier())
    before = made.directory
    commit = clone(tmp_path / "clones/a__b", {**BASE, "README": b"another commit\n"})
    path = tmp_path / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2]["base_commit"] = commit
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    later = pool(tmp_path)
    assert later.directory != before, "other rows, another pool"
    await prepared(later, Verifier())
    assert [task.id for task in later.load()] == ["elsewhere", "owner__calc-1", "owner__calc-2"]


async def test_a_pool_that_grew_is_tried_again_where_it_was_not(made: TaskRows, tmp_path: Path) -> None:
    hidden = tmp_path / "clones/owner__calc"
    hidden.rename(tmp_path / "hidden")
    with pytest.raises(ConfigError, match=r"no task can be run here; .*pool.json says why of each; choose other rows"):
        await made.prepare(print)
    assert made.problems() == []
    assert made.load() == ()
    (tmp_path / "hidden").rename(hidden)
    await made.prepare(print)
    assert [problem.problem for problem in made.problems()] == ["2 of 2 tasks were not tried yet (owner__calc-1, …)"]
    with pytest.raises(ConfigError, match="2 of 2 tasks were not tried yet"):
        made.load()


async def test_tasks_and_whole_repositories_may_be_held_out(made: TaskRows, tmp_path: Path) -> None:
    await prepared(made, Verifier())
    for names, splits in (
        (["owner__calc-2"], ["train", "validation"]),
        (["owner/calc"], ["validation", "validation"]),
    ):
        chosen = pool(tmp_path, validation=names)
        assert chosen.directory == made.directory, "what is held out changes no task"
        assert [task.split for task in chosen.load()] == splits
    (problem,) = pool(tmp_path, validation=["calc"]).problems()
    assert (problem.key, problem.value) == ("tasks.validation.0", "calc")


async def test_a_pool_in_which_nothing_holds_is_refused(made: TaskRows) -> None:
    with pytest.raises(RunError, match=r"none of the 2 tasks of .*rows.jsonl holds in the image of tasks.image; add "):
        await prepared(made, Choosy("owner__calc-1", "owner__calc-2"))


async def test_other_settings_are_another_pool(made: TaskRows, tmp_path: Path) -> None:
    others = (
        pool(tmp_path, ids=["owner__calc-1"]),
        pool(tmp_path, limits={**LIMITS, "cpus": 2.0}),
        pool(tmp_path, image={**IMAGE, "pip": ["attrs==23.1"]}),
    )
    assert len({made.directory, *(other.directory for other in others)}) == 4
    await prepared(others[0], Verifier())
    assert [task.id for task in others[0].load()] == ["owner__calc-1"]


async def test_bad_rows_end_a_prepare_or_are_told(made: TaskRows, tmp_path: Path) -> None:
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps({**SWE_SMITH, "patch": "x"}) + "\n")
        file.write(json.dumps({**SWE_REBENCH_2, "instance_id": "other"}) + "\n")
        file.write(json.dumps({**SWE_BENCH, "instance_id": "third", "patch": "x"}) + "\n")
    with pytest.raises(ConfigErrors) as raised:
        await prepared(pool(tmp_path), Verifier())
    assert str(raised.value).splitlines()[-1] == (
        "tasks.bad_rows='refuse': 2 of 7 rows are bad; mend them, or take the others alone with "
        "tasks.bad_rows=leave_out"
    )
    said = await prepared(pool(tmp_path, bad_rows="leave_out"), Verifier())
    assert sum(": is no diff that can be read" in line for line in said) == 1


async def test_what_is_not_here_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    problems = pool(tmp_path).problems()
    assert [problem.key for problem in problems] == ["tasks.path", "tasks.checkouts"]
    with pytest.raises(ConfigErrors, match="there is no such file or folder"):
        await pool(tmp_path).prepare(print)
    assert not (tmp_path / "cache").exists()
