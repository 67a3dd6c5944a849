"""`job=ablation`: what it is worth that a sandbox's parts are made before a trial (the paper's Table 5).

Each part is measured in pairs, one after the other: how long it takes until a sandbox that has it runs a command, with
the part at hand in the cache, and without it, when it is installed at the trial's start as the paper's baseline does.
Starts sandboxes and nothing else. Invariant: what is installed for a measurement lies in a folder of its own and is
removed; the cache is read, never changed. Needs the network, as `job=prepare` does.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from engine.config.built import Built
from engine.core.contracts import Say
from engine.core.errors import ConfigErrors, RunError
from engine.core.paths import cache_dir
from engine.core.specs import ImageSpec, Mount, SandboxSpec
from engine.core.temporary import temporary_folder
from engine.observe.progress import ProgressView, make_progress
from engine.run.jobs.delivery import DeliveryJob
from engine.run.workbench import build_reach, check_grading
from engine.sandbox.images import DebianImageStore
from engine.sandbox.pushed import Format

Part = Literal["image", "runtime", "toolchain", "pull"]
_MOUNTED = "/opt/mounted"
_PULLS: tuple[Format, ...] = ("gzip", "zstd:chunked")
_CHANGED = 0.05
"""Share of the files in which the two images differ."""
_WHAT = {
    "image": "prebuilt task image",
    "runtime": "mounted agent runtime",
    "toolchain": "packaged grading toolchain",
}


@dataclass(kw_only=True)
class Pairs:
    """Seconds until the sandbox ran a command, pair by pair."""

    name: str
    at_hand: list[float] = field(default_factory=list)
    installed: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the pairs' own ratios: what the machine does meanwhile is in both halves of a pair."""
        return statistics.median(slow / fast for slow, fast in zip(self.installed, self.at_hand, strict=True))

    def line(self) -> str:
        with_it, without = statistics.median(self.at_hand), statistics.median(self.installed)
        return f"{self.name:<42}{with_it:>10.2f} s{without:>10.1f} s{self.ratio:>10.0f} ×"


class AblationJob:
    """Times a sandbox's start with and without what was prepared.

    Args:
        parts: which are measured: the tasks' images, the harnesses' runtimes, the verifier's toolchain, and a pull of
            what differs from an older image against one of the whole.
        pairs: measurements of each, half of them with an installation of minutes.
        least_ratio: the exit code is 3 where image or runtime is worth less than this.
    """

    def __init__(self, *, parts: Sequence[Part], pairs: int, least_ratio: float) -> None:
        self.parts = parts
        self.pairs = pairs
        self.least_ratio = least_ratio

    async def run(self, built: Built) -> int:
        """Exit code 0 where each is worth enough. Raises RunError where one is not."""
        images = DebianImageStore()
        check_grading(built, images)
        problems = [problem for harness in built.harnesses.values() for problem in harness.problems(images)]
        if problems:
            raise ConfigErrors(problems)
        if "pull" in self.parts:
            self._delivery().check(built)
        subjects = list(self._subjects(built))
        results = []
        apart = partial(DebianImageStore, reach=build_reach(built))
        with make_progress(built.observe.progress_interval_s) as progress:
            for part, name, spec in subjects:
                found = Pairs(name=f"{_WHAT[part]} ({name})")
                for number in range(self.pairs):
                    progress.phase(found.name, number, self.pairs, "")
                    found.at_hand.append(await _ready(built, part, spec, images, progress.say))
                    with temporary_folder("ablation", cache_dir()) as folder:
                        found.installed.append(await _ready(built, part, spec, apart(folder), progress.say))
                progress.say(found.line())
                results.append((part, found))
            if "pull" in self.parts:
                results.append(("pull", await self._pulls(built, progress)))
        print(f"{'until a sandbox runs a command, medians':<42}{'at hand':>12}{'installed':>12}{'ratio':>12}")
        for _, found in results:
            print(found.line())
        low = [found.name for part, found in results if part in ("image", "runtime") and found.ratio < self.least_ratio]
        if low:
            raise RunError(f"worth less than {self.least_ratio:g} ×: {', '.join(low)}")
        return 0

    def _delivery(self) -> DeliveryJob:
        return DeliveryJob(registry=None, plain_http=False, modes=_PULLS, pairs=self.pairs, changed=_CHANGED)

    async def _pulls(self, built: Built, progress: ProgressView) -> Pairs:
        """A second image after a first one that has most of its files: only what differs, and whole."""
        job = self._delivery()
        found = await job.measure(built, job.check(built), _PULLS, progress)
        whole, parts = ([one.second.seconds for one in found[mode]] for mode in _PULLS)
        return Pairs(
            name=f"pull of what differs, of all ({built.tasks.images()[0].name})", at_hand=parts, installed=whole
        )

    def _subjects(self, built: Built) -> Iterator[tuple[Part, str, ImageSpec]]:
        for spec in dict.fromkeys(built.tasks.images()) if "image" in self.parts else ():
            yield "image", spec.name, spec
        for name, harness in built.harnesses.items() if "runtime" in self.parts else ():
            yield "runtime", name, harness.runtime()
        if "toolchain" in self.parts:
            yield "toolchain", "pytest", built.verify.toolchain()


async def _ready(built: Built, part: Part, spec: ImageSpec, store: DebianImageStore, say: Say) -> float:
    """Seconds until a sandbox that has the part runs a command; what `store` lacks of it is installed meanwhile."""
    cache = DebianImageStore()
    root, mounts = spec, tuple[Mount, ...]()
    if part != "image":
        root, mounts = built.tasks.images()[0], (Mount(source=store.path(spec), target=_MOUNTED),)
    await built.sandbox.start(store if part == "image" else cache, f"ablation-{built.hash}")
    try:
        begun = time.monotonic()
        await store.build(spec, say)
        sandbox = await built.sandbox.create(_specification(built, root, mounts))
        await sandbox.exec(["/bin/true"], environment={}, cwd="/", timeout_s=60.0, stdin=b"")
        return time.monotonic() - begun
    finally:
        await built.sandbox.stop()  # and so the sandbox


def _specification(built: Built, image: ImageSpec, mounts: tuple[Mount, ...]) -> SandboxSpec:
    task = built.tasks.load()[0]
    return SandboxSpec(
        name="ablation",
        image=image,
        mounts=mounts,
        workdir=task.workdir,
        environment={},
        memory_mb=task.memory_mb,
        cpus=task.cpus,
        pids=built.sandbox.pids,
        disk_mb=built.sandbox.disk_mb,
    )
