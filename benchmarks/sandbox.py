"""How long sandboxes take: `python benchmarks/sandbox.py [--runs N] [--runtime NAME]…`; prints one table.

Run it alone on the machine. Each runtime makes N sandboxes one after the other over the image of `tasks=release_pairs`;
then 64, eight at a time, after which nothing of them may be left (otherwise it is named, and the exit code is 1).
"The whole" is a sandbox from the call to its last file removed, the model's way in and one command included.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml
from leaks import descriptors, left

from engine.core.specs import ImageSpec, SandboxSpec
from engine.sandbox.bubblewrap import BubblewrapRuntime
from engine.sandbox.images import DebianImageStore
from engine.sandbox.inside import ContainedSandbox
from engine.sandbox.local import LocalRuntime
from engine.sandbox.podman import PodmanRuntime

ROOT = Path(__file__).parents[1]
RUNTIMES = {"bubblewrap": BubblewrapRuntime, "podman": PodmanRuntime}
WORKDIR = "/testbed"
PARALLEL, TRIALS = 8, 64
NAME = "benchmark-of-sandboxes"
WHOLE, EXEC = "the whole: create, listen, exec, stop", "exec /bin/true"
BARS_MS = {("podman", WHOLE): 800, ("podman", EXEC): 120, ("bubblewrap", WHOLE): 25, ("bubblewrap", EXEC): 25}
"""What the project wants at most, as p50."""


def configured(name: str, storage: str) -> LocalRuntime:
    values = yaml.safe_load((ROOT / f"configs/sandbox/{name}.yaml").read_text())
    values.pop("_target_")
    return RUNTIMES[name](**values | {"storage": storage})


def specification(runtime: LocalRuntime) -> SandboxSpec:
    image = yaml.safe_load((ROOT / "configs/tasks/release_pairs.yaml").read_text())["image"]
    spec = ImageSpec(name=image["name"], suite=image["suite"], packages=tuple(image["packages"]), pip=())
    return SandboxSpec(
        name=NAME,
        image=spec,
        mounts=(),
        workdir=WORKDIR,
        environment={},
        memory_mb=1024,
        cpus=1.0,
        pids=runtime.pids,
        disk_mb=runtime.disk_mb,
    )


async def true(sandbox: ContainedSandbox) -> None:
    await sandbox.exec(["/bin/true"], environment={}, cwd="/", timeout_s=60, stdin=b"")


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return (time.perf_counter() - begun) * 1000


async def measure(runtime: LocalRuntime, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each operation."""
    images, figures = DebianImageStore(), dict[str, list[float]]()
    spec = specification(runtime)
    await images.build(spec.image, print)
    await runtime.start(images, NAME)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "source"
            for number in range(300):
                path = source / f"package{number % 10}" / f"module{number}.py"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x = 1\n" * 1000)
            for run in range(runs):
                await one(runtime, spec, source, Path(folder) / f"copy{run}", figures)
        places = asyncio.Semaphore(PARALLEL)

        async def one_of_many() -> None:
            async with places:
                begun = time.perf_counter()
                await whole(runtime, spec)
                each.append((time.perf_counter() - begun) * 1000)

        each = figures.setdefault(f"the same, one of {TRIALS}, {PARALLEL} at a time", [])
        await asyncio.gather(*(one_of_many() for _ in range(TRIALS)))
    finally:
        await runtime.stop()
    return figures


async def whole(runtime: LocalRuntime, spec: SandboxSpec) -> None:
    sandbox = await runtime.create(spec)
    (await sandbox.listen(8080)).close()
    await true(sandbox)
    await sandbox.stop()


async def one(
    runtime: LocalRuntime, spec: SandboxSpec, source: Path, copy: Path, figures: dict[str, list[float]]
) -> None:
    made: list[ContainedSandbox] = []

    async def create() -> None:
        made.append(await runtime.create(spec))

    took = {"create": await timed(create)}
    sandbox = made[0]
    took[EXEC] = await timed(lambda: true(sandbox))
    took["listen"] = await timed(lambda: sandbox.listen(8080))
    took["upload 300 files, 1.8 MB"] = await timed(lambda: sandbox.upload(source, WORKDIR))
    took["kill"] = await timed(sandbox.kill)
    took["download them"] = await timed(lambda: sandbox.download(WORKDIR, copy))
    took["stop"] = await timed(sandbox.stop)
    took[WHOLE] = await timed(lambda: whole(runtime, spec))
    for name, value in took.items():
        figures.setdefault(name, []).append(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--runtime", choices=RUNTIMES, action="append")
    parser.add_argument("--storage", choices=["loop", "tmpfs"], default="loop")
    arguments = parser.parse_args()
    print(f"{'runtime':<11} {'operation':<37} {'p50 ms':>8} {'p95 ms':>8} {'at most':>8}  n")
    clean = True
    for name in arguments.runtime or RUNTIMES:
        before = descriptors()
        figures = asyncio.run(measure(configured(name, arguments.storage), arguments.runs))
        for operation, values in figures.items():
            p95 = sorted(values)[max(0, round(0.95 * len(values)) - 1)]
            bar = BARS_MS.get((name, operation), "")
            print(f"{name:<11} {operation:<37} {statistics.median(values):8.1f} {p95:8.1f} {bar:>8}  {len(values)}")
        remains = left(NAME, before)
        clean &= not remains
        print(f"{name:<11} left behind: {'; '.join(remains) or 'nothing'}")
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
