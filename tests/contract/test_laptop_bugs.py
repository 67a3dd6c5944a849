"""Real bugs in a real package, tried in real sandboxes and graded by the real verifier."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from grading_pieces import configured, open_bench

from engine.core.patch import difference, make, read_tree
from engine.core.records import Patch, Task
from engine.core.specs import ImageSpec
from engine.tasks.audit import MOST_FAILING, MOST_PASSING, Audit, audit, is_plain
from engine.tasks.bundles import Bundle, known_packages, real_bundle
from engine.tasks.generated import generated_bundles
from engine.tasks.harbor import Limits, read_task, write_task
from engine.tasks.injected import make_draft, repairs, task_name
from engine.tasks.laptop import LaptopPool
from engine.tasks.sdists import fetch
from engine.tasks.trials import Bench

LIMITS = Limits(agent_timeout_s=60, grade_timeout_s=30, memory_mb=1024, cpus=1)


def image() -> ImageSpec:
    return LaptopPool(**configured("tasks/laptop")).images()[0]


async def few_bundles() -> list[Bundle]:
    """One module of a real package, and a few generated ones."""
    package = next(package for package in known_packages() if package.sdist.package == "inflection")
    await fetch([package.sdist], print)
    generated = generated_bundles()[0]
    return [real_bundle(package), replace(generated, modules=generated.modules[:4])]


def write(found: Audit, bundle: Bundle, folder: Path) -> list[Task]:
    tasks = []
    for bug in found.bugs:
        draft = make_draft(bug, bundle, place=1, image=image(), limits=LIMITS, workdir="/testbed")
        directory = write_task(draft, folder / task_name(bug))
        (directory / "solution/repairs.json").write_text(repairs(bug))
        tasks.append(read_task(directory, split="train", image=image()))
    return tasks


def wrong_repair(task: Task, place: int) -> Patch:
    """What a solver does that chooses a wrong line."""
    facts = json.loads((task.directory / "solution/repairs.json").read_text())
    base = read_tree(task.repository)
    text, executable = base[facts["path"]]
    lines = text.decode().split("\n")
    assert lines[facts["line"] - 1] == facts["buggy"]
    lines[facts["line"] - 1] = facts["wrong"][place]
    return difference(base, {**base, facts["path"]: ("\n".join(lines).encode(), executable)})


@pytest.mark.parametrize("place", [0, 1], ids=["real", "generated"])
async def test_bugs_that_hold_are_tasks_that_grade(tmp_path: Path, place: int) -> None:
    bundle = (await few_bundles())[place]
    async with open_bench("laptop-pool") as parts:
        bench = Bench(
            runtime=parts.runtime,
            toolchain=parts.images.path(parts.verifier.toolchain()),
            image=image(),
            workdir="/testbed",
            memory_mb=1024,
            cpus=1,
            cpu_s=20,
        )
        found = await audit(bundle, bench, 0, 3)
        assert len(found.bugs) >= 3
        assert found.tried > len(found.bugs)
        for bug in found.bugs:
            assert all(map(is_plain, (bug.buggy, bug.right, *bug.wrong)))
            assert len(bug.pass_to_pass) <= MOST_PASSING
        for task in write(found, bundle, tmp_path)[:3]:
            assert task.reference is not None
            assert 1 <= len(task.fail_to_pass) <= MOST_FAILING
            good = await parts.grade(task, task.reference)
            assert good.resolved, good.evidence
            repairs_of = json.loads((task.directory / "solution/repairs.json").read_text())
            module = (task.repository / repairs_of["path"]).read_text()
            assert module.count(repairs_of["buggy"].strip()) == 1
            base = await parts.grade(task, make([]))
            assert {test.id for test in base.tests if not test.ok} == set(task.fail_to_pass)
            for place in range(2):
                assert not (await parts.grade(task, wrong_repair(task, place))).resolved
