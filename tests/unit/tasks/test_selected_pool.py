"""The pool that keeps what a policy solved sometimes: what becomes of each task, what is told, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from record_pieces import a_task

from engine.core.errors import ConfigError, ConfigErrors
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.task_contracts import AuditedPool, DoubtedPool, SelectingPool, TaskPool
from engine.tasks.counts import SolveCount, read_counts, write_counts
from engine.tasks.selected import SelectedPool


class Pool:
    """Tasks as they are given."""

    def __init__(self, *tasks: Task, problem: ConfigError | None = None) -> None:
        self.tasks, self.problem, self.prepared = tasks, problem, 0

    def problems(self) -> Sequence[ConfigError]:
        return [self.problem] if self.problem else []

    async def prepare(self, say: Any) -> None:
        self.prepared += 1
        if self.problem:
            raise ConfigErrors([self.problem])

    def load(self) -> tuple[Task, ...]:
        if self.problem:
            raise self.problem
        return self.tasks

    def images(self) -> tuple[ImageSpec, ...]:
        return tuple(task.image for task in self.tasks[:1])


class Doubted(Pool):
    """One whose tasks are tried."""

    audited = 0

    async def audit(self, *_: Any) -> None:
        self.audited += 1

    def doubts(self, tasks: Sequence[Task]) -> Sequence[ConfigError]:
        return [ConfigError("tasks.path", "here", f"task {task.id}: does not hold", "mend it") for task in tasks]


def counted(task: str, solved: int, of: int, **changes: Any) -> SolveCount:
    values: dict[str, Any] = {
        "task": task,
        "fingerprint": "0" * 64,
        "solved": solved,
        "of": of,
        "excluded": 0,
        "run": "r",
        "checkpoint": None,
        "policy_versions": (0, 0),
    }
    return SolveCount(**(values | changes))


def selected(pool: TaskPool, file: Path, *counts: SolveCount, **changes: Any) -> SelectedPool:
    """From counts that are written first, unless there are none."""
    if counts:
        write_counts("job.to", file, counts)
    values = {"solved_least": 1, "solved_most": 3, "of": 4, "unknown": "drop"} | changes
    return SelectedPool(pool=pool, counts=str(file), **values)


def left(pool: SelectedPool) -> list[str]:
    return [task.id for task in pool.load()]


def tasks(*names: str, **changes: Any) -> list[Task]:
    return [a_task(id=name, **changes) for name in names]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "counts.json"


def test_one_to_three_of_four_are_kept(file: Path) -> None:
    counts = [counted(f"t{solved}", solved, 4) for solved in range(5)]
    pool = Pool(*tasks("t0", "t1", "t2", "t3", "t4"))
    made = selected(pool, file, *counts)
    assert left(made) == ["t1", "t2", "t3"]
    assert left(selected(pool, file, solved_least=0, solved_most=1)) == ["t0", "t1"]
    assert left(selected(pool, file, solved_least=4, solved_most=4)) == ["t4"]
    assert made.images() == (pool.tasks[0].image,)
    assert made.problems() == []


def test_with_more_rollouts_than_asked_shares_are_compared(file: Path) -> None:
    """A third of six is between 1 and 3 of 4; 7 of 8 is more than 3 of 4, which is 6 of 8."""
    pool = Pool(*tasks("low", "third", "three", "high"))
    counts = [counted("low", 1, 8), counted("third", 2, 6), counted("three", 6, 8), counted("high", 7, 8)]
    assert left(selected(pool, file, *counts)) == ["third", "three"]


def test_counts_of_several_runs_add_up(file: Path) -> None:
    pool = Pool(*tasks("apart", "never"))
    counts = [counted(name, solved, 2, run=run) for run, solved in (("a", 0), ("b", 2)) for name in ("apart",)]
    counts += [counted("never", 0, 2, run=run) for run in "ab"]
    assert left(selected(pool, file, *counts)) == ["apart"]


@pytest.mark.parametrize(("unknown", "kept"), [("drop", ["known"]), ("keep", ["known", "new", "changed", "few"])])
def test_what_cannot_be_judged_is_kept_or_dropped_and_told(file: Path, unknown: str, kept: list[str]) -> None:
    pool = Pool(*tasks("known", "new", "changed", "few", "hard"))
    counts = [
        counted("known", 2, 4),
        counted("changed", 2, 4, fingerprint="1" * 64),
        counted("few", 1, 3, excluded=1),
        counted("hard", 0, 4),
        counted("elsewhere", 2, 4),
    ]
    made = selected(pool, file, *counts, unknown=unknown)
    assert left(made) == kept
    verb = "kept" if unknown == "keep" else "dropped"
    assert made.told() == [
        f"tasks: {len(kept)} of 5 training tasks selected, solved 1 to 3 of 4 by {file}",
        "  dropped 1 solved less than 1 of 4: hard",
        f"  {verb} 1 not in the file: new",
        f"  {verb} 1 changed since they were tried: changed",
        f"  {verb} 1 with fewer than 4 rollouts: few",
    ]


def test_a_count_of_the_task_as_it_is_now_is_found_beside_an_older_one(file: Path) -> None:
    counts = [counted("t", 0, 4, fingerprint="1" * 64), counted("t", 2, 4)]
    assert left(selected(Pool(*tasks("t")), file, *counts)) == ["t"]


def test_tasks_of_other_splits_are_never_left_out(file: Path) -> None:
    held_out, taught = tasks("v", split="validation"), tasks("w", split="warm_start")
    pool = Pool(*held_out, *tasks("t", "u"), *taught)
    counts = [counted("v", 0, 4), counted("t", 2, 4), counted("u", 4, 4)]
    made = selected(pool, file, *counts)
    assert left(made) == ["v", "t", "w"]
    assert made.told()[0].startswith("tasks: 1 of 2 training tasks selected")


def test_a_long_list_is_cut(file: Path) -> None:
    names = [f"t{number}" for number in range(8)]
    made = selected(Pool(*tasks("k", *names)), file, counted("k", 2, 4), *(counted(name, 4, 4) for name in names))
    assert made.told()[1:] == ["  dropped 8 solved more than 3 of 4: t0, t1, t2, t3, t4 and 3 more"]


def test_nothing_left_is_a_wrong_configuration(file: Path) -> None:
    pool = Pool(*tasks("a", "b", "c"), *tasks("v", split="validation"))
    made = selected(pool, file, counted("a", 0, 4), counted("b", 4, 4))
    with pytest.raises(ConfigError) as caught:
        made.load()
    assert str(caught.value) == (
        f"tasks.counts='{file}': leaves no task to train on with solved_least=1, solved_most=3, of=4, unknown=drop: "
        "1 solved less than 1 of 4, 1 solved more than 3 of 4, 1 not in the file; "
        "widen these bounds, or measure this pool with job=difficulty"
    )
    assert left(selected(Pool(*tasks("v", split="validation")), file)) == ["v"], "the plan says that all are held out"


async def test_what_is_wrong_with_the_pool_is_told_under_its_own_key(file: Path) -> None:
    pool = Pool(problem=ConfigError("tasks.path", "x", "is not a folder", "name one"))
    made = selected(pool, file, counted("a", 1, 4))
    expected = "tasks.pool.path='x': is not a folder; name one"
    assert [str(error) for error in made.problems()] == [expected]
    with pytest.raises(ConfigError, match=expected):
        made.load()
    with pytest.raises(ConfigErrors, match=expected):
        await made.prepare(print)
    pool.problem = ConfigError("tasks", "laptop", "is not built", "prepare")
    outer = selected(made, file)
    assert [error.key for error in outer.problems()] == ["tasks.pool.pool"], "a selection of a selection"


async def test_a_file_that_is_not_there_ends_a_prepare_before_anything_is_built(file: Path) -> None:
    pool = Pool(*tasks("a"))
    made = selected(pool, file)
    (problem,) = made.problems()
    assert str(problem) == (
        f"tasks.counts='{file}': there is no such file; name a file that job=difficulty wrote (job.to=FILE)"
    )
    with pytest.raises(ConfigError, match="there is no such file"):
        await made.prepare(print)
    assert pool.prepared == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read"),
        ("[]", r"holds no solve counts \(the whole: "),
        ('{"format": 2, "counts": []}', r"holds no solve counts \(format: 1 was expected"),
        (
            '{"format": 1, "counts": [{"task": "a"}]}',
            r"holds no solve counts \(counts\[0\]: 'fingerprint' is a required",
        ),
    ],
)
def test_a_file_of_another_form_is_refused(file: Path, content: str, problem: str) -> None:
    file.write_text(content)
    (found,) = selected(Pool(*tasks("a")), file).problems()
    assert found.key == "tasks.counts"
    with pytest.raises(ConfigError, match=problem):
        selected(Pool(*tasks("a")), file).load()


async def test_a_pool_that_tries_its_tasks_does_so(file: Path) -> None:
    inner = Doubted(*tasks("a", "b"))
    made = selected(inner, file, counted("a", 2, 4), counted("b", 4, 4))
    assert isinstance(made, AuditedPool) and isinstance(made, DoubtedPool) and isinstance(made, SelectingPool)
    assert [str(error) for error in made.doubts(made.load())] == [
        "tasks.pool.path='here': task a: does not hold; mend it"
    ], "one that is left out is no matter"
    await made.audit(None, None, None, print)  # type: ignore[arg-type]
    assert inner.audited == 1
    plain = selected(Pool(*tasks("a")), file)
    await plain.audit(None, None, None, print)  # type: ignore[arg-type]
    assert plain.doubts(plain.load()) == []


def test_the_file_reads_as_it_was_written_and_is_never_replaced(file: Path) -> None:
    counts = (counted("ü", 1, 4, checkpoint="c0", policy_versions=(0, 3)), counted("b", 0, 0, excluded=4))
    write_counts("job.to", file, counts)
    assert read_counts("tasks.counts", file) == counts
    assert json.loads(file.read_text())["counts"][0]["policy_versions"] == [0, 3]
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"is there already; name another file with job\.to, or remove this one"):
        write_counts("job.to", file, counts[:1])
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with pytest.raises(ConfigError, match="name a file to write to"):
        write_counts("job.to", file / "below", counts)
