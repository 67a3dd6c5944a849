"""The laptop pool: one-line bugs in small modules, small enough for a tiny policy on two cores.

Made in three steps, each kept whole in the cache or not at all, so an interrupted `job=prepare` goes on: bundles are
tried (`audit`), tasks are chosen (`selection`), and every chosen task is graded by the run's own verifier: its
reference must be resolved and its untouched base must not, else another takes its place.

Invariant: `cache/tasks/laptop-DIGEST/` holds all tasks and `report.json`, the funnel; the digest covers
configuration, list, generator, mutator and runner. Refuses numbers that the bugs cannot give.
"""

import asyncio
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.contracts import ImageStore, SandboxRuntime, Say
from engine.core.errors import ConfigError, RunError
from engine.core.patch import make
from engine.core.paths import cache_dir
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.task_contracts import Verifier
from engine.core.temporary import temporary_folder
from engine.core.together import side_by_side
from engine.core.whole import move_into_place, write_whole
from engine.tasks.audit import Audit, audit, read_audit
from engine.tasks.bundles import Bundle, Kind, known_packages, real_bundle
from engine.tasks.generated import generated_bundles
from engine.tasks.harbor import Limits, read_task, write_task
from engine.tasks.injected import make_draft, repairs, task_name
from engine.tasks.pool import image_spec
from engine.tasks.report import funnel, funnel_lines
from engine.tasks.sdists import fetch
from engine.tasks.selection import Chosen, select, wanted_numbers
from engine.tasks.trials import Bench

_FILES = (
    "audit.py",
    "bundles.py",
    "data/laptop_packages.json",
    "generated.py",
    "injected.py",
    "mutator.py",
    "trials.py",
    "try_variants.py",
)
"""Files of this package that decide which bugs hold, and what their tasks are."""
_ALL_FILES = (*_FILES, "selection.py")
"""And those that decide which are chosen."""
_SPARE = 1.5
"""Bugs that are found for each one wanted: selection refuses some, and grading may."""


Graders = tuple[SandboxRuntime, ImageStore, Verifier]


class LaptopPool:
    """Injected bugs: `contracts.TaskPool` and `contracts.AuditedPool`."""

    def __init__(
        self,
        *,
        seed: int,
        real: Mapping[str, int],
        generated: Mapping[str, int],
        show_repairs: bool,
        test_cpu_s: int,
        workers: int,
        image: Mapping[str, Any],
        workdir: str,
        agent_timeout_s: float,
        grade_timeout_s: float,
        memory_mb: int,
        cpus: float,
    ) -> None:
        self.seed = seed
        self.real = real
        self.generated = generated
        self.show_repairs = show_repairs
        self.test_cpu_s = test_cpu_s
        self.workers = workers
        self.image = image
        self.workdir = workdir
        self.agent_timeout_s = agent_timeout_s
        self.grade_timeout_s = grade_timeout_s
        self.memory_mb = memory_mb
        self.cpus = cpus

    def problems(self) -> list[ConfigError]:
        """Numbers that ask for nothing, and a pool that is not built on this machine yet."""
        if not sum((*self.real.values(), *self.generated.values())):
            return [ConfigError("tasks.real", dict(self.real), "no task is asked for", "ask for tasks of a split")]
        if not (self.directory / "report.json").is_file():
            way_out = "run the same command with job=prepare"
            return [ConfigError("tasks", "laptop", "the pool is not built here", way_out)]
        return []

    def images(self) -> tuple[ImageSpec, ...]:
        """The one image of all tasks."""
        return (image_spec(self.image),)

    async def prepare(self, say: Say) -> None:
        """Fetch the packages' sdists, as far as they are missing and wanted."""
        if self.problems() and any(self.real.values()):
            await fetch([package.sdist for package in known_packages()], say)

    async def audit(self, runtime: SandboxRuntime, images: ImageStore, verifier: Verifier, say: Say) -> None:
        """Try, choose, grade, write; says the funnel at the end."""
        begun = time.monotonic()
        bundles = {bundle.name: bundle for bundle in await asyncio.to_thread(self._bundles)}
        bench = self._bench(runtime, images.path(verifier.toolchain()))
        kept = cache_dir() / "laptop" / self._digest(repr(verifier.toolchain()))
        graders, factor, refused = (runtime, images, verifier), _SPARE, dict[str, str]()
        while True:
            enough = self._enough(bundles.values(), factor)
            jobs = [
                partial(self._audit, bundle, enough[bundle.kind], bench, kept / "audits", say)
                for bundle in bundles.values()
            ]
            audits = await side_by_side(jobs, self.workers)
            bugs = [bug for item in audits for bug in item.bugs if task_name(bug) not in refused]
            try:
                chosen = select(bugs, wanted_numbers(self.real, self.generated), self.seed)
            except RunError:
                if not any(item.left for item in audits):
                    raise
                factor *= 2
                continue
            graded = await self._grade_all(chosen, bundles, graders, kept / "graded", say)
            if not any(graded.values()):
                break
            refused |= {name: reason for name, reason in graded.items() if reason}
        report = funnel(audits, chosen, refused, time.monotonic() - begun)
        await asyncio.to_thread(self._write, chosen, bundles, report)
        for line in funnel_lines(report):
            say(line)

    def load(self) -> tuple[Task, ...]:
        """All tasks, by name. Raises ConfigError when they are not built."""
        problems = self.problems()
        if problems:
            raise problems[0]
        (image,) = self.images()
        tasks = json.loads((self.directory / "report.json").read_text(encoding="utf-8"))["tasks"]
        return tuple(
            replace(
                read_task(self.directory / entry["name"], split=entry["split"], image=image),
                **asdict(self._limits()),
            )
            for entry in sorted(tasks, key=lambda entry: str(entry["name"]))
        )

    @property
    def directory(self) -> Path:
        """Where the pool stands, or will."""
        numbers = [sorted(values.items()) for values in (self.real, self.generated)]
        return cache_dir() / "tasks" / f"laptop-{self._digest(_code(_ALL_FILES), numbers, self.show_repairs)}"

    # ---------------------------------------------------------------- steps

    def _bundles(self) -> list[Bundle]:
        real = [real_bundle(package) for package in known_packages()] if any(self.real.values()) else []
        return [*real, *(generated_bundles() if any(self.generated.values()) else ())]

    def _enough(self, bundles: Iterable[Bundle], factor: float) -> dict[Kind, int]:
        """Bugs after which a bundle of a kind is left, were all bundles equally rich; poor ones are tried whole."""
        number = Counter(bundle.kind for bundle in bundles)
        wanted = wanted_numbers(self.real, self.generated)
        return {kind: math.ceil(factor * sum(wanted[kind].values()) / number[kind]) for kind in number}

    async def _audit(self, bundle: Bundle, enough: int, bench: Bench, kept: Path, say: Say) -> Audit:
        """Try a bundle; the answer is kept, whatever splits and words of issues are asked for later."""
        file = kept / f"{bundle.name}-{enough}.json"
        if not file.is_file():
            say(f"tasks: trying bugs in {bundle.name} ({len(bundle.modules)} modules)")
            found = await audit(bundle, bench, self.seed, enough)
            write_whole(file, found.text().encode())
            say(f"tasks: {bundle.name}: {found.tried} bugs tried, {len(found.bugs)} hold")
        return read_audit(file.read_text(encoding="utf-8"))

    async def _grade_all(
        self, chosen: Sequence[Chosen], bundles: Mapping[str, Bundle], graders: Graders, kept: Path, say: Say
    ) -> dict[str, str]:
        """Task name → why it is refused; empty where it holds."""
        answers: dict[str, str] = {}

        async def one(item: Chosen, folder: Path) -> None:
            name = task_name(item.bug)
            file = kept / f"{name}.txt"
            if not file.is_file():
                answer = await _grade(self._draw_up(item, bundles[item.bug.bundle], folder), graders)
                write_whole(file, answer.encode())
            answers[name] = file.read_text(encoding="utf-8")
            if len(answers) % 20 == 0:
                say(f"tasks: {len(answers)} of {len(chosen)} graded")

        with temporary_folder("laptop") as folder:
            await side_by_side([partial(one, item, folder) for item in chosen], self.workers)
        return answers

    def _draw_up(self, item: Chosen, bundle: Bundle, folder: Path) -> Task:
        (image,) = self.images()
        task = read_task(self._write_one(item, bundle, folder), split=item.split, image=image)
        return replace(task, **asdict(self._limits()))

    def _write_one(self, item: Chosen, bundle: Bundle, folder: Path) -> Path:
        (image,) = self.images()
        draft = make_draft(
            item.bug,
            bundle,
            place=item.place if self.show_repairs else None,
            image=image,
            limits=self._limits(),
            workdir=self.workdir,
        )
        directory = write_task(draft, folder / task_name(item.bug))
        (directory / "solution/repairs.json").write_text(repairs(item.bug), encoding="utf-8")
        return directory

    def _write(self, chosen: Sequence[Chosen], bundles: Mapping[str, Bundle], report: Mapping[str, Any]) -> None:
        final = self.directory
        with _appearing(final) as folder:
            for item in chosen:
                self._write_one(item, bundles[item.bug.bundle], folder)
            text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
            (folder / "report.json").write_text(text, encoding="utf-8")

    # ---------------------------------------------------------------- facts

    def _limits(self) -> Limits:
        return Limits(
            agent_timeout_s=self.agent_timeout_s,
            grade_timeout_s=self.grade_timeout_s,
            memory_mb=self.memory_mb,
            cpus=self.cpus,
        )

    def _bench(self, runtime: SandboxRuntime, toolchain: Path) -> Bench:
        (image,) = self.images()
        return Bench(
            runtime=runtime,
            toolchain=toolchain,
            image=image,
            workdir=self.workdir,
            memory_mb=self.memory_mb,
            cpus=self.cpus,
            cpu_s=self.test_cpu_s,
        )

    def _digest(self, *more: object) -> str:
        (image,) = self.images()
        facts = [_code(_FILES), repr(image), self.workdir, self.seed, self.test_cpu_s, *more]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


async def _grade(task: Task, graders: Graders) -> str:
    """Grade a task's reference and its untouched base; returns why it is refused, or nothing."""
    runtime, images, verifier = graders
    assert task.reference is not None
    good = await verifier.grade(task, task.reference, runtime, images, f"audit-{task.id}-reference")
    if not good.resolved:
        return "graded: the reference is not resolved"
    bad = await verifier.grade(task, make([]), runtime, images, f"audit-{task.id}-base")
    if any(test.ok == (test.kind == "fail_to_pass") for test in bad.tests):
        return "graded: other tests fail on the base than were recorded"
    return ""


@cache
def _code(names: tuple[str, ...]) -> str:
    """sha256 over files of this package."""
    package = resources.files("engine.tasks")
    return hashlib.sha256(b"".join((package / name).read_bytes() for name in names)).hexdigest()


@contextmanager
def _appearing(final: Path) -> Iterator[Path]:
    """A new folder that becomes `final` once all is in it."""
    with temporary_folder("build", final.parent) as scratch:
        (scratch / "new").mkdir()
        yield scratch / "new"
        move_into_place(scratch / "new", final)
