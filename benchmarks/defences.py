"""What all defences together cost a trial: `python benchmarks/defences.py [--trials N] [OVERRIDE…]`.

Plays each of N trials twice, with every stage of `defense=standard` and the grader's canaries, and with none of them,
in turns, one trial at a time, by the path and the policy of `benchmarks/trials.py`. Prints the median of the pairs'
differences in wall clock and in processor time. What is no stage (a fresh grading sandbox, the patch by contents, the
end of the agent's processes) is in both: it cannot be off.

Run it alone on the machine. Exits with 1 unless every trial earned its reward.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from trials import EXPERIMENT, FIXED, Bench, cpu_s, script_of, trial_of

from engine.config.assemble import assemble
from engine.config.compose import compose
from engine.core.records import Task
from engine.inference.scripted import ScriptedEngine
from engine.run.trial import Workshop, run_trial
from engine.run.workbench import check_machine
from engine.sandbox.images import DebianImageStore

MODEL = "model=tiny_qwen3_moe"  # its weights are never asked
AT_MOST_S = 1.5
"""What the project wants at most."""


async def opened(stack: AsyncExitStack, folder: Path, overrides: Sequence[str]) -> tuple[Bench, Workshop]:
    """A bench of its own, started until the stack ends."""
    built = assemble(compose([f"experiment={EXPERIMENT}", "tasks=laptop", MODEL, *FIXED, *overrides]))
    images = DebianImageStore()
    check_machine(built, images)
    tasks = built.tasks.load()
    bench = Bench(built, tasks, folder)
    folder.mkdir()
    await built.sandbox.start(images, "benchmark-defences")
    stack.push_async_callback(built.sandbox.stop)
    engine = ScriptedEngine(script=script_of(tasks), final_text="", seed=0, probe=None)
    model = built.model.info()
    await engine.start(model, folder)
    stack.push_async_callback(engine.stop)
    await built.proxy.start(model, engine)
    stack.push_async_callback(built.proxy.stop)
    return bench, Workshop.of(built, images, built.proxy, folder / "scratch")


async def played(bench: Bench, shop: Workshop, task: Task, sample: int) -> tuple[bool, float, float]:
    """Whether it earned its reward, wall seconds, processor seconds."""
    begun, used = time.perf_counter(), cpu_s()
    scored = await run_trial(trial_of(task, sample), shop)
    return bench.earned(scored), time.perf_counter() - begun, cpu_s() - used


async def run(trials: int, overrides: Sequence[str]) -> bool:
    stages = len(assemble(compose([f"experiment={EXPERIMENT}", *FIXED])).defense.stages)
    none = [*(f"defense.stages.{number}.mode=off" for number in range(stages)), "verify.canaries=off"]
    good, walls, cpus = True, ([], []), ([], [])  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory(prefix="lego-rl-defences-") as name:
        async with AsyncExitStack() as stack:
            benches = [
                await opened(stack, Path(name) / kind, [*overrides, *more])
                for kind, more in (("all", ()), ("none", none))
            ]
            for number in range(trials + 1):
                for which, (bench, shop) in enumerate(benches):
                    earned, wall, cpu = await played(bench, shop, bench.tasks[number % len(bench.tasks)], number)
                    good &= earned
                    if number:  # the first starts the warm processes
                        walls[which].append(wall)
                        cpus[which].append(cpu)
    print(f"{trials} pairs of trials, p50 in seconds   all defences      none   difference   at most")
    for what, (with_all, with_none), bar in (("wall clock", walls, AT_MOST_S), ("processor time", cpus, "")):
        difference = statistics.median(a - b for a, b in zip(with_all, with_none, strict=True))
        medians = statistics.median(with_all), statistics.median(with_none)
        print(f"{what:<36} {medians[0]:12.3f} {medians[1]:9.3f} {difference:12.3f} {bar:>9}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    options, overrides = parser.parse_known_args()
    sys.exit(0 if asyncio.run(run(options.trials, overrides)) else 1)


if __name__ == "__main__":
    main()
