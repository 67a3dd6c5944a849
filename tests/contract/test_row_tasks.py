"""Task directories that were made of rows and clones are graded as any other: real sandboxes, the real toolchain."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from calc_task import BASE_CODE, FAIL_TO_PASS, FIXED_CODE, OLD_TESTS, PASS_TO_PASS, TESTS
from grading_pieces import Bench, configured, open_bench, task_image
from task_rows import SWE_BENCH, SWE_SMITH, read_all

from engine.core.patch import difference, make
from engine.core.records import Task
from engine.tasks import proving, row_pool
from engine.tasks.harbor import Limits, read_task, write_task
from engine.tasks.row_pool import TaskRows
from engine.tasks.rows.checkouts import Checkouts
from engine.tasks.rows.directories import draft_of

LIMITS = Limits(agent_timeout_s=60, grade_timeout_s=60, memory_mb=512, cpus=1)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench("row-tasks") as started:
        yield started


def commit(folder: Path, code: bytes, tests: bytes) -> str:
    """A clone of the calc package; returns its commit."""
    for name, data in {"calc/__init__.py": code, "tests/test_calc.py": tests, "tests/test_rest.py": OLD_TESTS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q", "."], ["add", "-A"], [*identity, "commit", "-qm", "base"], ["rev-parse", "HEAD"]):
        done = subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def diff(path: str, before: bytes, after: bytes) -> str:
    return difference({path: (before, False)}, {path: (after, False)}).diff


def task_of(row: dict[str, Any], folder: Path) -> Task:
    """The task of the one row, by way of a file of rows and a directory."""
    (folder / "rows.jsonl").write_text(json.dumps(row))
    ((read,), _) = read_all(folder / "rows.jsonl")
    tree = Checkouts(folder / "clones").tree(read.repository, str(read.base_commit))
    directory = write_task(draft_of(read, tree, task_image(), LIMITS), folder / "made" / read.id)
    return read_task(directory, split="train", image=task_image())


async def judged(bench: Bench, task: Task) -> None:
    """Its reference is resolved, and its untouched base fails in the tests that must turn alone."""
    assert task.reference is not None
    good = await bench.grade(task, task.reference)
    assert (good.reward, good.resolved) == (1.0, True), good.evidence
    bad = await bench.grade(task, make([]))
    assert (bad.reward, [result.id for result in bad.tests if not result.ok]) == (0.0, list(task.fail_to_pass))


async def test_a_row_of_swe_bench_is_graded(bench: Bench, tmp_path: Path) -> None:
    row = {
        **SWE_BENCH,
        "base_commit": commit(tmp_path / "clones/owner__calc", BASE_CODE, OLD_TESTS),
        "patch": diff("calc/__init__.py", BASE_CODE, FIXED_CODE),
        "test_patch": diff("tests/test_calc.py", OLD_TESTS, TESTS),
        "FAIL_TO_PASS": list(FAIL_TO_PASS),
        "PASS_TO_PASS": json.dumps(PASS_TO_PASS),
    }
    task = task_of(row, tmp_path)
    assert (task.repository / "tests/test_calc.py").read_bytes() == OLD_TESTS
    await judged(bench, task)


async def test_a_row_of_swe_smith_is_graded(bench: Bench, tmp_path: Path) -> None:
    right = commit(tmp_path / "clones/owner__calc", FIXED_CODE, TESTS)
    row = {
        **SWE_SMITH,
        "repo": f"swesmith/owner__calc.{right[:8]}",
        "patch": diff("calc/__init__.py", FIXED_CODE, BASE_CODE),
        "FAIL_TO_PASS": list(FAIL_TO_PASS),
        "PASS_TO_PASS": [*PASS_TO_PASS, "tests/test_rest.py::test_mul"],
    }
    task = task_of(row, tmp_path)
    assert (task.repository / "calc/__init__.py").read_bytes() == BASE_CODE
    assert not (task.repository / "tests/test_calc.py").exists()
    await judged(bench, task)


async def test_a_pool_of_rows_holds_what_passes_its_own_reference(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = commit(tmp_path / "clones/owner__calc", BASE_CODE, OLD_TESTS)
    good = {
        **SWE_BENCH,
        "base_commit": base,
        "patch": diff("calc/__init__.py", BASE_CODE, FIXED_CODE),
        "test_patch": diff("tests/test_calc.py", OLD_TESTS, TESTS),
        "FAIL_TO_PASS": list(FAIL_TO_PASS),
    }
    wrong = {**good, "instance_id": "wrong", "patch": diff("calc/__init__.py", BASE_CODE, BASE_CODE + b"x = 1\n")}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, wrong)))
    places = {"path": str(tmp_path / "rows.jsonl"), "checkouts": str(tmp_path / "clones")}
    built = {key: getattr(task_image(), key) for key in ("name", "suite", "packages", "pip")}
    pool = TaskRows(**configured("tasks/rows", **places, image=built))
    said: list[str] = []
    for module in (row_pool, proving):  # not the images' own
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path / "cache")
    await pool.prepare(said.append)
    await pool.audit(bench.runtime, bench.images, bench.verifier, said.append)
    (task,) = pool.load()
    assert task.id == "owner__calc-1"
    assert "tasks: wrong: its reference does not pass (tests/test_calc.py::test_add failed)" in said
