"""The laptop pool without sandboxes: which bugs are chosen, what a task says, how an interrupted audit goes on."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.core.errors import RunError
from engine.core.records import Patch, Task, TestResult, Verdict
from engine.core.specs import ImageSpec
from engine.core.task_contracts import AuditedPool, TaskPool
from engine.tasks import laptop
from engine.tasks.audit import Audit, Bug, is_plain, read_audit
from engine.tasks.bundles import Bundle, known_packages
from engine.tasks.generated import generated_bundles
from engine.tasks.injected import instruction, task_name
from engine.tasks.laptop import LaptopPool
from engine.tasks.selection import select, wanted_numbers

ROOT = Path(__file__).parents[3]
NONE = {"warm_start": 0, "train": 0, "validation": 0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pool(**changes: object) -> LaptopPool:
    values = yaml.safe_load((ROOT / "configs/tasks/laptop.yaml").read_text())
    del values["_target_"]
    return LaptopPool(**values | {"real": NONE} | changes)


def bugs_of(bundle: Bundle) -> tuple[Bug, ...]:
    """A bug of each module, as an audit would find them."""
    return tuple(
        Bug(
            bundle=bundle.name,
            kind=bundle.kind,
            module=module.path,
            function=mutant.function,
            line=mutant.line,
            family=mutant.family,
            right=mutant.before,
            buggy=mutant.after,
            wrong=tuple(other.after for other in others[:2]),
            fail_to_pass=(f"{module.tests[0]}::test_1",),
            pass_to_pass=(f"{module.tests[0]}::test_2",),
            message="",
            behaviour=module.behaviour,
        )
        for module in bundle.modules
        for mutant, *others in [module.mutants]
    )


def make_audit(bundle: Bundle, enough: int = 1000) -> Audit:
    bugs = bugs_of(bundle)[:enough]
    return Audit(
        bundle=bundle.name,
        kind=bundle.kind,
        modules=len(bugs),
        left=len(bundle.modules) - len(bugs),
        found=len(bugs) * 3,
        lines=len(bugs),
        tried=len(bugs) * 3,
        rejected={"mutant: no test fails": 2},
        bugs=bugs,
    )


ALL = [bug for bundle in generated_bundles() for bug in bugs_of(bundle)]


class Verifier:
    """Resolves every reference but those it is told to refuse, and no base."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.graded: list[str] = []

    def toolchain(self) -> ImageSpec:
        return ImageSpec(name="grader", suite=None, packages=(), pip=())

    async def grade(self, task: Task, patch: Patch, runtime: Any, images: Any, name: str) -> Verdict:
        self.graded.append(name)
        good = bool(patch.changes) and task.id not in self.refused
        tests = tuple(
            TestResult(id=test, kind=kind, outcome="passed", ok=good or kind == "pass_to_pass")
            for kind, ids in (("fail_to_pass", task.fail_to_pass), ("pass_to_pass", task.pass_to_pass))
            for test in ids
        )
        return Verdict(reward=float(good), resolved=good, tests=tests, evidence="", findings=(), grade_s=0.0)


class Images:
    def path(self, spec: ImageSpec) -> Path:
        return Path("/nowhere")


def run_audit(made: LaptopPool, verifier: Verifier) -> list[str]:
    said: list[str] = []
    asyncio.run(made.audit(None, Images(), verifier, said.append))  # type: ignore[arg-type]
    return said


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of bundles that were tried."""
    names: list[str] = []

    async def audit(bundle: Bundle, bench: object, seed: int, enough: int) -> Audit:
        names.append(bundle.name)
        return make_audit(bundle, enough)

    monkeypatch.setattr(laptop, "audit", audit)
    return names


def wanted(warm_start: int, train: int, validation: int) -> Mapping[str, int]:
    return {"warm_start": warm_start, "train": train, "validation": validation}


# ---------------------------------------------------------------- selection


def test_no_function_is_in_two_splits_and_the_numbers_are_met() -> None:
    twice = [*ALL, *(replace(bug, line=bug.line + 1) for bug in ALL), *(replace(bug, line=99) for bug in ALL)]
    chosen = select(twice, wanted_numbers(NONE, wanted(40, 60, 21)), 0)
    assert Counter(item.split for item in chosen) == wanted(40, 60, 21)
    splits: dict[tuple[str, str, str], set[str]] = {}
    for item in chosen:
        splits.setdefault(item.bug.unit, set()).add(item.split)
    assert all(len(names) == 1 for names in splits.values())
    assert max(Counter(item.bug.unit for item in chosen).values()) == 2
    assert len({task_name(item.bug) for item in chosen}) == len(chosen)


def test_families_take_turns_in_every_split() -> None:
    chosen = select(ALL, wanted_numbers(NONE, wanted(32, 48, 16)), 0)
    for split in ("warm_start", "train", "validation"):
        assert len({item.bug.family for item in chosen if item.split == split}) == len(generated_bundles())


def test_the_same_seed_chooses_the_same_another_one_does_not() -> None:
    numbers = wanted_numbers(NONE, wanted(10, 10, 10))
    assert select(ALL, numbers, 3) == select(list(reversed(ALL)), numbers, 3)
    assert select(ALL, numbers, 3) != select(ALL, numbers, 4)


def test_more_than_there_is_names_the_key() -> None:
    with pytest.raises(RunError, match=r"tasks\.generated\.\w+=\d+: \d+ short"):
        select(ALL, wanted_numbers(NONE, wanted(5, len(ALL), 5)), 0)
    with pytest.raises(RunError, match=r"tasks\.real\.train=1: 1 short, 0 real bugs"):
        select(ALL, wanted_numbers(wanted(0, 1, 0), NONE), 0)


# ---------------------------------------------------------------- words


def test_the_issue_names_file_function_fault_and_line() -> None:
    bug = replace(ALL[0], behaviour="", message="AssertionError: 1 != 2", module="a/b.py", function="C.d")
    text = instruction(bug, 1)
    for part in ("`C.d` in `a/b.py`", "`test_1` fails: AssertionError: 1 != 2", bug.buggy.strip(), bug.right.strip()):
        assert part in text
    lines = text.split("right:\n\n")[1].split("\n")[:3]
    assert sorted(lines) == sorted(line.strip() for line in (bug.right, *bug.wrong))
    assert lines[1] == bug.right.strip()
    assert instruction(bug, 1) == text
    assert bug.right.strip() not in instruction(bug, None)


def test_always_the_same_place_is_right_one_time_in_three_in_every_split() -> None:
    chosen = select(ALL, wanted_numbers(NONE, wanted(32, 33, 16)), 0)
    for split, most in (("warm_start", 11), ("train", 11), ("validation", 6)):
        places = Counter(item.place for item in chosen if item.split == split)
        assert sorted(places) == [0, 1, 2] and max(places.values()) == most
    order = [item.place for item in chosen]
    assert order != [0, 1, 2] * (len(order) // 3), "no order that a policy could learn from the tasks' own"


# ---------------------------------------------------------------- the pool


def test_it_is_a_pool_that_is_audited() -> None:
    made: TaskPool = pool()
    assert isinstance(made, AuditedPool)


def test_what_is_not_built_is_a_problem_and_says_how() -> None:
    (problem,) = pool().problems()
    assert "job=prepare" in problem.way_out
    (problem,) = pool(generated=NONE).problems()
    assert problem.problem == "no task is asked for"


def test_tasks_are_written_with_split_reference_and_repairs(tried: list[str]) -> None:
    made = pool(generated=wanted(3, 4, 2), agent_timeout_s=7)
    said = run_audit(made, Verifier())
    assert made.problems() == []
    tasks = made.load()
    assert Counter(task.split for task in tasks) == wanted(3, 4, 2)
    for task in tasks:
        assert task.agent_timeout_s == 7
        assert task.reference is not None
        (change,) = task.reference.changes
        assert sum(a != b for a, b in zip(change.before.split(b"\n"), change.after.split(b"\n"), strict=True)) == 1
        repairs = json.loads((task.directory / "solution/repairs.json").read_text())
        assert repairs["buggy"].encode() in change.before
        assert repairs["right"].encode() in change.after
        assert len(repairs["wrong"]) == 2
        assert not list(task.repository.rglob("test_*"))
    assert "100% of the tasks are generated" in said[-1]


def test_the_report_counts_what_fell_out(tried: list[str]) -> None:
    made = pool(generated=wanted(3, 4, 2))
    run_audit(made, Verifier())
    report = json.loads((made.directory / "report.json").read_text())
    bundles = generated_bundles()
    enough = math.ceil(1.5 * 9 / len(bundles))
    assert report["totals"]["bugs"] == enough * len(bundles)
    assert report["totals"]["left"] == len(ALL) - enough * len(bundles)
    assert report["totals"]["tasks"] == len(report["tasks"]) == 9
    assert report["totals"]["generated_share"] == 1
    assert report["rejected"] == {"mutant: no test fails": 2 * len(bundles)}
    assert {split: entry["tasks"] for split, entry in report["splits"].items()} == wanted(3, 4, 2)
    assert sum(entry["tasks"] for entry in report["bundles"]) == 9


def test_more_is_tried_when_what_was_enough_is_not(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One family gives nothing, so the others must give more than their share."""
    shared, poor = laptop.audit, generated_bundles()[0].name

    async def audit(bundle: Bundle, bench: Any, seed: int, enough: int) -> Audit:
        found = await shared(bundle, bench, seed, enough)
        return replace(found, bugs=(), left=0) if bundle.name == poor else found

    monkeypatch.setattr(laptop, "audit", audit)
    made = pool(generated=wanted(6 * len(generated_bundles()), 2 * len(generated_bundles()), len(generated_bundles())))
    monkeypatch.setattr(laptop, "_SPARE", 1)
    run_audit(made, Verifier())
    assert len(made.load()) == 9 * len(generated_bundles())
    assert set(Counter(tried).values()) == {2}


def test_numbers_that_no_bugs_can_give_are_refused(tried: list[str]) -> None:
    with pytest.raises(RunError, match=r"tasks\.generated\.\w+=\d+: \d+ short"):
        run_audit(pool(generated=wanted(5, len(ALL), 5)), Verifier())


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("    return a + b", True),
        ("return text.split(',')", True),
        ('return "a"', False),
        ("return `a`", False),
        ("return a.split('\\n')", False),
        ("a\t= b", False),
        ("return 'é'", False),
    ],
)
def test_lines_that_read_the_same_everywhere(line: str, plain: bool) -> None:
    assert is_plain(line) is plain


def test_a_task_that_grading_refuses_is_replaced(tried: list[str]) -> None:
    numbers = wanted(3, 4, 2)
    found = [bug for bundle in generated_bundles() for bug in make_audit(bundle, math.ceil(1.5 * 9 / 7)).bugs]
    first = task_name(select(found, wanted_numbers(NONE, numbers), 0)[0].bug)
    made = pool(generated=numbers)
    run_audit(made, Verifier(frozenset({first})))
    assert first not in {task.id for task in made.load()}
    report = json.loads((made.directory / "report.json").read_text())
    assert report["rejected"]["graded: the reference is not resolved"] == 1


def test_an_interrupted_audit_goes_on(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made, verifier = pool(generated=wanted(3, 4, 2), workers=1), Verifier()

    class Interrupted(Exception):
        pass

    async def break_off(*_: object) -> Verdict:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(verifier, "grade", break_off)
        with pytest.raises(Interrupted):
            run_audit(made, verifier)
    assert made.problems()
    run_audit(made, verifier)
    assert len(verifier.graded) == 18
    run_audit(pool(generated=wanted(3, 4, 2), show_repairs=False), verifier)
    assert len(verifier.graded) == 18
    assert len(tried) == len(set(tried)) == len(generated_bundles())


def test_other_limits_need_no_rebuild_other_numbers_do(tried: list[str]) -> None:
    numbers = wanted(1, 1, 1)
    run_audit(pool(generated=numbers), Verifier())
    assert pool(generated=numbers, cpus=2, agent_timeout_s=1, workers=1).problems() == []
    for changes in ({"seed": 1}, {"show_repairs": False}, {"workdir": "/elsewhere"}, {"generated": wanted(1, 1, 2)}):
        assert pool(**{"generated": numbers, **changes}).problems()


def test_an_audit_is_read_as_it_was_written() -> None:
    made = make_audit(generated_bundles()[0])
    assert read_audit(made.text()) == made


def test_the_list_of_packages_is_whole() -> None:
    packages = known_packages()
    assert len({package.sdist.package for package in packages}) == len(packages) >= 7
    for package in packages:
        assert len(package.sdist.sha256) == 64
        assert package.license in {"MIT", "BSD-3-Clause", "Apache-2.0", "MPL-2.0"}
        assert all(module["tests"] for module in package.facts["modules"])
