"""What a trial costs beside its model: `python benchmarks/trials.py [--trials N] [--concurrency C]… [--grade-only]`.

Plays N trials of the pool's tasks through the real path (`engine/run/trial.py`) with mini-swe-agent and a scripted
policy that lays the reference over the repository and submits, then stores each. Prints wall clock of every stage and
processor time, of this process and all its children, as p50 and p90. With one trial at a time processor time is known
for each stage; with several only for a whole trial. `--grade-only` grades references alone: no harness, no proxy.

Run it alone on the machine. Exits with 1 unless every trial earned its reward.
"""

import argparse
import asyncio
import base64
import difflib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.config.assemble import assemble
from engine.config.built import Built
from engine.config.compose import compose
from engine.core.records import Scored, Task, Trial, TrialKey
from engine.inference.scripted import ScriptedEngine
from engine.run.trial import Workshop, run_trial
from engine.run.workbench import check_machine
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout
from engine.store.writer import Writer

EXPERIMENT = "mini_swe_agent_gspo"
HARNESS = "mini_swe_agent"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FIXED = ("inference=scripted", "proxy.max_tokens_per_turn=4096", "job=show")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Figures:
    """Seconds by (what, kind), kind being `wall` or `cpu`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}

    def add(self, what: str, kind: str, seconds: float) -> None:
        self.values.setdefault((what, kind), []).append(seconds)

    @contextmanager
    def timed(self, what: str, *, cpu: bool) -> Iterator[None]:
        """Note how long a block takes, and what it computes, if nothing else runs meanwhile."""
        begun, used = time.perf_counter(), cpu_s() if cpu else 0.0
        yield
        self.add(what, "wall", time.perf_counter() - begun)
        if cpu:
            self.add(what, "cpu", cpu_s() - used)

    def show(self, title: str) -> None:
        print(f"\n{title}")
        print(f"  {'stage':<10}{'wall p50':>10}{'p90':>8}{'cpu p50':>10}{'p90':>8}   (ms)")
        for what in dict.fromkeys(what for what, _ in self.values):
            cells = ""
            for kind, width in (("wall", 10), ("cpu", 10)):
                values = self.values.get((what, kind))
                pair = (f"{1000 * q:.0f}" for q in quantiles(values)) if values else ("", "")
                cells += "".join(f"{text:>{wide}}" for text, wide in zip(pair, (width, 8), strict=True))
            print(f"  {what:<10}{cells}")


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile."""
    if len(values) == 1:
        return values[0], values[0]
    return statistics.median(values), statistics.quantiles(values, n=10, method="inclusive")[8]


def cpu_s() -> float:
    """Processor seconds of this process and of all its children: those that ended, and those that live."""
    used = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    return used + sum(living_s(child) for child in children(os.getpid()))


def living_s(pid: int) -> float:
    """Of a living process, those that it waited for, and its living children; 0 when it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return TICK_S * sum(int(field) for field in fields[11:15]) + sum(living_s(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """Living children of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


class Metered:
    """Another object whose methods are timed: `stages` names those that count, and the figure they go to."""

    def __init__(self, inner: Any, figures: Figures, stages: dict[str, str]) -> None:
        self._inner, self._figures, self._stages = inner, figures, stages

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._stages:
            return attribute

        async def timed(*arguments: Any, **options: Any) -> Any:
            with self._figures.timed(self._stages[name], cpu=True):
                return await attribute(*arguments, **options)

        return timed


class MeteredRuntime(Metered):
    """A sandbox runtime that times its sandboxes' operations, apart from those of the grader's."""

    async def create(self, spec: Any) -> Any:
        if spec.name.endswith("-grade"):
            return await self._inner.create(spec)
        with self._figures.timed("create", cpu=True):
            sandbox = await self._inner.create(spec)
        return Metered(sandbox, self._figures, {"exec": "agent", "download": "download", "stop": "stop"})


def script_of(tasks: Sequence[Task]) -> dict[str, list[dict[str, Any]]]:
    """Per task: one command that lays the reference over the repository, one that submits."""
    script = {}
    for task in tasks:
        mend, submit = f"echo {diff_of(task)} | base64 -d | git apply --unidiff-zero", SUBMIT
        script[f"*-{task.id}-s*"] = [
            {"calls": [{"name": "bash", "arguments": {"command": command}}]} for command in (mend, submit)
        ]
    return script


def diff_of(task: Task) -> str:
    """The reference as a diff without context, short enough for one turn, in base64."""
    assert task.reference is not None
    text = ""
    for change in task.reference.changes:
        old, new = ((side or b"").decode().splitlines(keepends=True) for side in (change.before, change.after))
        text += "".join(difflib.unified_diff(old, new, f"a/{change.path}", f"b/{change.path}", n=0))
    return base64.b64encode(text.encode()).decode()


def trial_of(task: Task, sample: int) -> Trial:
    return Trial(
        key=TrialKey(run="benchmark", epoch=0, task=task.id, sample=sample, attempt=0),
        task=task,
        harness=HARNESS,
        policy_version=0,
        seed=sample,
        temperature=1.0,
        top_p=1.0,
        split="train",
    )


async def side_by_side(jobs: Sequence[Callable[[], Awaitable[bool]]], width: int) -> tuple[list[bool], float, float]:
    """(what each said, wall seconds, processor seconds) of all jobs, `width` at a time."""
    turns = asyncio.Semaphore(width)

    async def one(job: Callable[[], Awaitable[bool]]) -> bool:
        async with turns:
            return await job()

    begun, used = time.perf_counter(), cpu_s()
    answers = await asyncio.gather(*(one(job) for job in jobs))
    return list(answers), time.perf_counter() - begun, cpu_s() - used


class Bench:
    """Everything started."""

    def __init__(self, built: Built, tasks: Sequence[Task], folder: Path) -> None:
        self.built, self.tasks, self.folder = built, tasks, folder
        self.images = DebianImageStore()
        self.writer = Writer(Layout(root=folder / "run"))

    def shop(self, figures: Figures, *, cpu: bool) -> Workshop:
        built = self.built
        shop = Workshop.of(built, self.images, built.proxy, self.folder / "scratch")
        if not cpu:
            return shop
        sandboxes = MeteredRuntime(built.sandbox, figures, {})
        return replace(shop, sandboxes=sandboxes, verifier=Metered(built.verify, figures, {"grade": "grade"}))

    async def trials(self, count: int, width: int) -> bool:
        figures, alone = Figures(), width == 1
        shop = self.shop(figures, cpu=alone)

        async def play(number: int) -> bool:
            task = self.tasks[number % len(self.tasks)]
            with figures.timed("trial", cpu=alone):
                scored = await run_trial(trial_of(task, 1000 * width + number), shop)
            with figures.timed("store", cpu=alone):
                self.writer.trial(width, scored)
            for stage, seconds in scored.trajectory.timings.items():
                if not alone or stage in ("setup", "extract", "first_request"):
                    figures.add(stage, "wall", seconds)
            return self.earned(scored)

        answers, wall, cpu = await side_by_side([partial(play, number) for number in range(count)], width)
        figures.show(f"{count} trials, {width} at a time: {wall / count:.2f} s wall, {cpu / count:.2f} CPU-s a trial")
        return all(answers)

    async def grades(self, count: int, width: int) -> bool:
        figures, alone = Figures(), width == 1

        async def grade(number: int) -> bool:
            task, built = self.tasks[number % len(self.tasks)], self.built
            assert task.reference is not None
            with figures.timed("grade", cpu=alone):
                name = f"{task.id}-{number}"
                verdict = await built.verify.grade(task, task.reference, built.sandbox, self.images, name)
            if not verdict.resolved:
                print(f"{task.id}: {verdict.evidence}")
            return verdict.resolved

        answers, wall, cpu = await side_by_side([partial(grade, number) for number in range(count)], width)
        figures.show(f"{count} gradings, {width} at a time: {wall / count:.2f} s wall, {cpu / count:.2f} CPU-s each")
        return all(answers)

    @staticmethod
    def earned(scored: Scored) -> bool:
        if scored.verdict is not None and scored.verdict.resolved:
            return True
        trajectory = scored.trajectory
        print(f"{trajectory.trial.key}: {trajectory.termination}: {trajectory.reason}")
        if scored.verdict is not None:
            print(scored.verdict.evidence)
        return False


async def run(options: argparse.Namespace, overrides: Sequence[str]) -> bool:
    built = assemble(compose([f"experiment={EXPERIMENT}", "tasks=laptop", *FIXED, *overrides]))
    images = DebianImageStore()
    check_machine(built, images)
    tasks = [task for task in built.tasks.load() if not options.kind or kind_of(task) == options.kind]
    good = True
    with tempfile.TemporaryDirectory(prefix="lego-rl-trials-") as name:
        folder = Path(name)
        bench = Bench(built, tasks, folder)
        await built.sandbox.start(images, "benchmark-trials")
        try:
            if options.grade_only:
                for width in options.concurrency:
                    good &= await bench.grades(options.trials, width)
                return good
            engine = ScriptedEngine(script=script_of(tasks), final_text="", seed=0, probe=None)
            model = built.model.info()
            await engine.start(model, folder)
            await built.proxy.start(model, engine)
            try:
                for width in options.concurrency:
                    good &= await bench.trials(options.trials, width)
            finally:
                await built.proxy.stop()
                await engine.stop()
        finally:
            await built.sandbox.stop()
    return good


def kind_of(task: Task) -> str:
    """`real` or `generated`."""
    kind = json.loads((task.directory / "solution/repairs.json").read_text())["kind"]
    return str(kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--concurrency", type=int, action="append", default=[])
    parser.add_argument("--grade-only", action="store_true")
    parser.add_argument("--kind", choices=["real", "generated"])
    options, overrides = parser.parse_known_args()
    options.concurrency = options.concurrency or [1, 4, 8]
    sys.exit(0 if asyncio.run(run(options, overrides)) else 1)


if __name__ == "__main__":
    main()
