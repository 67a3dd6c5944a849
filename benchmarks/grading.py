"""Grades the reference and the untouched base of every task of a pool and prints the table.

    python benchmarks/grading.py [--pool release_pairs|laptop] [--repeat N] [NAME …]

Builds what is missing (task image, toolchain, tasks), grades in bubblewrap sandboxes as `configs/` say, and exits with
1 unless every reference is resolved and no untouched base is. Not a test: it also says how long each grading took. Of
the laptop pool it prints the funnel too: what was tried, and why the rest fell out.
"""

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from engine.core.patch import make
from engine.core.records import Task, Verdict
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.tasks.laptop import LaptopPool
from engine.tasks.release_pairs import ReleasePairs
from engine.tasks.report import funnel_lines
from engine.verify.pytest_verifier import PytestVerifier

ROOT = Path(__file__).parents[1]


def configured(option: str, **changes: Any) -> dict[str, Any]:
    """Keyword arguments of a component, from its YAML."""
    values = yaml.safe_load((ROOT / f"configs/{option}.yaml").read_text())
    return {key: value for key, value in (values | changes).items() if key != "_target_"}


POOLS = {"release_pairs": ReleasePairs, "laptop": LaptopPool}


async def grade_all(
    option: str, names: list[str], repeat: int, console: Console
) -> list[tuple[Task, list[Verdict], list[Verdict]]]:
    """(task, verdicts of the reference, verdicts of the untouched base) for each task of one of these names."""
    pool = POOLS[option](**configured(f"tasks/{option}"))
    verifier = PytestVerifier(**configured("verify/pytest"))
    runtime = BubblewrapRuntime(**configured("sandbox/bubblewrap"))
    for problem in runtime.problems():
        sys.exit(str(problem))
    images = DebianImageStore()
    for image in (*pool.images(), verifier.toolchain()):
        await images.build(image, console.print)
    if pool.problems():
        await pool.prepare(console.print)
    await runtime.start(images, "benchmark-grading")
    results = []
    try:
        if isinstance(pool, LaptopPool):
            if pool.problems():
                await pool.audit(runtime, images, verifier, console.print)
            report = json.loads((pool.directory / "report.json").read_text(encoding="utf-8"))
            console.print("\n".join(funnel_lines(report)), highlight=False)
        tasks = [task for task in pool.load() if not names or any(task.id.startswith(name) for name in names)]
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
    arguments.add_argument("--pool", choices=sorted(POOLS), default="release_pairs")
    arguments.add_argument("names", nargs="*", help="beginnings of task names; none: all")
    options = arguments.parse_args()
    console = Console(width=120)
    results = asyncio.run(grade_all(options.pool, options.names, options.repeat, console))
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
