"""Grades the reference and the untouched base of every release pair, or of your own tasks, and prints the table.

    python benchmarks/grading.py [--repeat N] [--tasks FOLDER] [NAME …]

Builds what is missing (task image, toolchain, tasks), grades in bubblewrap sandboxes as `configs/` say, and exits with
1 unless every reference is resolved and no untouched base is. Not a test: it also says how long each grading took.
"""

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from engine.core.errors import LegoError
from engine.core.patch import make
from engine.core.records import Task, Verdict
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.tasks.directory import HarborDirectory
from engine.tasks.release_pairs import ReleasePairs
from engine.verify.pytest_verifier import PytestVerifier

ROOT = Path(__file__).parents[1]


def configured(option: str, **changes: Any) -> dict[str, Any]:
    """Keyword arguments of a component, from its YAML."""
    values = yaml.safe_load((ROOT / f"configs/{option}.yaml").read_text())
    return {key: value for key, value in (values | changes).items() if key != "_target_"}


def pool_of(folder: str | None, names: list[str]) -> HarborDirectory | ReleasePairs:
    """Task directories below `folder`; the release pairs when there is none."""
    if folder is None:
        return ReleasePairs(**configured("tasks/release_pairs", names=names))
    pool = HarborDirectory(**configured("tasks/harbor", path=folder))
    for problem in pool.problems():
        raise problem
    return pool


def chosen(pool: HarborDirectory | ReleasePairs, names: list[str]) -> list[Task]:
    """The tasks to grade; ends the program where there is none, or one has no reference."""
    tasks = [task for task in pool.load() if isinstance(pool, ReleasePairs) or not names or task.id in names]
    if not tasks:
        sys.exit(f"no task is called {', '.join(names)}")
    without = [task.id for task in tasks if task.reference is None]
    if without:
        sys.exit(f"no solution/files, so no reference to grade: {', '.join(without)}")
    return tasks


async def grade_all(
    pool: HarborDirectory | ReleasePairs, names: list[str], repeat: int, console: Console
) -> list[tuple[Task, list[Verdict], list[Verdict]]]:
    """(task, verdicts of the reference, verdicts of the untouched base) for each task."""
    verifier = PytestVerifier(**configured("verify/pytest"))
    runtime = BubblewrapRuntime(**configured("sandbox/bubblewrap"))
    for problem in runtime.problems():
        sys.exit(str(problem))
    images = DebianImageStore()
    for image in (*pool.images(), verifier.toolchain()):
        await images.build(image, console.print)
    await pool.prepare(console.print)
    tasks = chosen(pool, names)
    await runtime.start(images, "benchmark-grading")
    results = []
    try:
        for task in tasks:
            assert task.reference is not None
            verdicts: list[list[Verdict]] = [
                [await verifier.grade(task, patch, runtime, images, f"{task.id}-{index}") for index in range(repeat)]
                for patch in (task.reference, make([]))
            ]
            results.append((task, verdicts[0], verdicts[1]))
            console.print(f"{task.id}: {verdicts[0][-1].evidence.splitlines()[0]}")
    finally:
        await runtime.stop()
    return results


def main() -> None:
    """Print the table; exit code 1 when a task does not hold."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeat", type=int, default=1)
    arguments.add_argument("--tasks", metavar="FOLDER", help="your own task directories lie below FOLDER")
    arguments.add_argument("names", nargs="*", help="pairs, packages or tasks; none: all")
    options = arguments.parse_args()
    console = Console(width=120)
    try:
        results = asyncio.run(grade_all(pool_of(options.tasks, options.names), options.names, options.repeat, console))
    except LegoError as error:
        sys.exit(str(error))
    table = Table("task", "split", "tests", "reference", "base", "seconds (p50)")
    for task, good, bad in results:
        seconds = statistics.median(verdict.grade_s for verdict in (*good, *bad))
        table.add_row(
            task.id,
            task.split,
            f"{len(task.fail_to_pass)} + {len(task.pass_to_pass)}",
            f"{sum(verdict.resolved for verdict in good)}/{len(good)}",
            f"{sum(verdict.resolved for verdict in bad)}/{len(bad)}",
            f"{seconds:.2f}",
        )
    console.print(table)
    resolved = sum(all(verdict.resolved for verdict in good) for _, good, _ in results)
    untouched = sum(any(verdict.resolved for verdict in bad) for _, _, bad in results)
    console.print(f"reference resolved {resolved}/{len(results)}, untouched base {untouched}/{len(results)}")
    sys.exit(0 if resolved == len(results) and untouched == 0 else 1)


if __name__ == "__main__":
    main()
