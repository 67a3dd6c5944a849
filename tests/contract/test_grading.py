"""Grading as it is: real sandboxes, the real toolchain. Honest fixes are rewarded, nothing else is.

Cheats are tried against the verifier alone: nothing before it has taken the agent's test edits out of the patch.
"""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from grading_cheats import CHEATS, CODE
from grading_pieces import Bench, calc_task, edits_reverted, open_bench, pool, task_image

from engine.core.errors import GraderError
from engine.core.patch import make
from engine.core.records import Patch, Task
from engine.core.specs import ImageSpec, Mount, SandboxSpec
from engine.defense.patch_by_contents import make_patch

FAST_PAIRS = ("parse-1.20.0-1.20.1", "pathspec-0.12.0-0.12.1", "cachetools-7.2.1-7.2.2")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench("grading-tests") as started:
        yield started


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return calc_task.write_calc(tmp_path, task_image())


def left_by_agent(task: Task, files: dict[str, str | None], folder: Path) -> Patch:
    """What the engine takes from a tree in which an agent wrote these files."""
    tree = Path(shutil.copytree(task.repository, folder))
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (tree / path).unlink()
        else:
            (tree / path).write_text(text)
    return make_patch(task.repository, tree)[0]


# ---------------------------------------------------------------- honest work


async def test_the_reference_is_rewarded_and_the_untouched_base_is_not(bench: Bench, task: Task) -> None:
    assert task.reference is not None
    good = await bench.grade(task, task.reference)
    assert (good.reward, good.resolved, good.findings) == (1.0, True, ()), good.evidence
    outcomes = {result.id: result.outcome for result in good.tests}
    assert outcomes["tests/test_calc.py::test_skipped"] == "skipped"
    assert outcomes["tests/test_calc.py::test_known"] == "xfailed"
    assert len(outcomes) == 1 + len(calc_task.PASS_TO_PASS)
    bad = await bench.grade(task, make([]))
    assert (bad.reward, bad.resolved) == (0.0, False)
    assert [result.id for result in bad.tests if not result.ok] == ["tests/test_calc.py::test_add"]
    assert "assert -1 == 5" in bad.evidence


HONEST = {
    "edits tests as well": {"tests/test_calc.py": "def test_mine():\n    assert False\n"},
    "adds a conftest": {"conftest.py": "raise RuntimeError\n"},
    "prints and warns": {"calc/extra.py": "", "notes.md": "# why\n"},
    "breaks pytest's configuration": {"setup.cfg": "[tool:pytest]\naddopts = --nonsense\n"},
}


@pytest.mark.parametrize("extra", HONEST)
async def test_an_honest_fix_is_rewarded_whatever_lies_beside_it(
    bench: Bench, task: Task, tmp_path: Path, extra: str
) -> None:
    code = (
        calc_task.FIXED_CODE.decode()
        + "import sys, warnings, atexit\nprint('hello')\nwarnings.warn('x')\natexit.register(print)\n"
    )
    patch = left_by_agent(task, {**HONEST[extra], "calc/__init__.py": code}, tmp_path / "tree")
    for taken in (patch, edits_reverted().extract(task, tmp_path, patch)[0]):
        verdict = await bench.grade(task, taken)
        assert verdict.reward == 1.0, verdict.evidence


async def test_a_fix_that_breaks_something_else_is_not_rewarded(bench: Bench, task: Task) -> None:
    broken = calc_task.FIXED_CODE.replace(b"a * b", b"a + b")
    verdict = await bench.grade(task, make([calc_task.change("calc/__init__.py", calc_task.BASE_CODE, broken)]))
    assert verdict.reward == 0.0
    assert [result.id for result in verdict.tests if not result.ok] == ["tests/test_calc.py::test_mul"]


# ---------------------------------------------------------------- cheats


@pytest.mark.parametrize("name", CHEATS)
async def test_no_cheat_is_rewarded(bench: Bench, task: Task, tmp_path: Path, name: str) -> None:
    quick = replace(task, grade_timeout_s=4.0, memory_mb=256)
    verdict = await bench.grade(quick, left_by_agent(quick, CHEATS[name], tmp_path / "tree"))
    assert verdict.reward == 0.0, verdict.evidence
    assert verdict.evidence.encode()  # fit to be stored


async def test_a_result_that_equals_everything_is_not_rewarded(bench: Bench, task: Task, tmp_path: Path) -> None:
    always = "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n\n\n"
    code = always + CODE.replace("return a - b", "return Any() if a else 0")
    patch = left_by_agent(task, {"calc/__init__.py": code}, tmp_path / "tree")
    verdict = await bench.grade(task, patch)
    assert verdict.reward == 0.0
    assert [finding.stage for finding in verdict.findings] == ["canaries"], "by the tests alone it had been rewarded"
    assert all(result.ok for result in verdict.tests)


# ---------------------------------------------------------------- what is nobody's doing


async def test_a_toolchain_that_does_not_work_is_a_grader_error(bench: Bench, task: Task, tmp_path: Path) -> None:
    class Empty:
        def path(self, spec: ImageSpec) -> Path:
            return tmp_path

    assert task.reference is not None
    with pytest.raises(GraderError, match=r"never got ready.*No module named 'pytest'"):
        await bench.verifier.grade(task, task.reference, bench.runtime, Empty(), "broken")  # type: ignore[arg-type]


async def test_a_patch_of_another_base_is_a_grader_error(bench: Bench, task: Task) -> None:
    with pytest.raises(GraderError, match="another base"):
        await bench.grade(task, make([calc_task.change("calc/__init__.py", b"something else", calc_task.FIXED_CODE)]))


# ---------------------------------------------------------------- real packages


async def check_pairs(bench: Bench, names: list[str]) -> None:
    tasks = pool(names=names, validation=[])
    await tasks.prepare(print)
    for task in tasks.load():
        assert task.reference is not None
        good = await bench.grade(task, task.reference)
        assert good.resolved, f"{task.id}: {good.evidence}"
        bad = await bench.grade(task, make([]))
        assert bad.reward == 0.0, task.id
        assert not any(result.ok for result in bad.tests if result.kind == "fail_to_pass"), bad.evidence
        assert all(result.ok for result in bad.tests if result.kind == "pass_to_pass"), bad.evidence


async def test_three_release_pairs_hold(bench: Bench) -> None:
    await check_pairs(bench, list(FAST_PAIRS))


@pytest.mark.slow
async def test_all_twelve_release_pairs_hold(bench: Bench) -> None:
    await check_pairs(bench, [])


# ---------------------------------------------------------------- Harbor


@pytest.mark.parametrize("solved", [True, False])
async def test_what_users_of_harbor_run_comes_to_the_same_reward(bench: Bench, task: Task, solved: bool) -> None:
    """`tests/test.sh` in one container with the agent's tree, after `solution/solve.sh` or without it."""
    sandbox = await bench.runtime.create(
        SandboxSpec(
            name="harbor",
            image=task.image,
            mounts=(
                Mount(source=task.directory / "tests", target="/tests"),
                Mount(source=task.directory / "solution", target="/solution"),
            ),
            workdir=task.workdir,
            environment={},
            memory_mb=512,
            cpus=1,
            pids=64,
            disk_mb=128,
        )
    )
    try:
        await sandbox.upload(task.repository, task.workdir)
        await sandbox.write({"/logs/verifier/.keep": b""})
        scripts = ["/solution/solve.sh", "/tests/test.sh"] if solved else ["/tests/test.sh"]
        for script in scripts:
            environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
            ran = await sandbox.exec((script,), environment=environment, cwd=task.workdir, timeout_s=60, stdin=b"")
            assert ran.exit_code == 0, ran.stderr.decode()
        assert await sandbox.read("/logs/verifier/reward.txt", 16) == (b"1\n" if solved else b"0\n")
    finally:
        await sandbox.stop()
