"""Starts everything a run needs, in order, and stops it in reverse, whatever happens.

Order: proxy (it serves nothing yet) → sandboxes → trainer and inference. What is missing on this machine is found
before anything starts.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.config.built import Built
from engine.config.network_checks import lists
from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.specs import ImageSpec, ModelInfo
from engine.core.threads import to_the_end
from engine.core.training_contracts import Trainer
from engine.run import warm_start
from engine.run.capabilities import unmet
from engine.run.keeper import EngineKeeper
from engine.run.selection import unselected
from engine.run.trial import Workshop
from engine.sandbox.images import DebianImageStore
from engine.store.layout import Layout

_GPUS = ("nvidia[0-9]*", "nvidiactl", "nvhost-ctrl-gpu", "dxg", "kfd")
"""Device files of NVIDIA, Tegra, WSL and AMD drivers: seen without importing torch."""


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """All started."""

    model: ModelInfo
    engine: EngineKeeper
    trainer: Trainer
    shop: Workshop


def images_needed(built: Built) -> dict[str, ImageSpec]:
    """Configuration key → image or runtime that the run mounts."""
    needed = {f"tasks (image {spec.name})": spec for spec in built.tasks.images()}
    needed["verify (toolchain)"] = built.verify.toolchain()
    for name, harness in built.harnesses.items():
        needed[f"harnesses.{name} (runtime)"] = harness.runtime()
    return needed


def build_reach(built: Built) -> Sequence[str]:
    """What building an image may reach beside this machine's own sources of packages."""
    return tuple(lists(built.config).get("build", ()))


def check_machine(built: Built, images: ImageStore, *, model: bool = True) -> None:
    """Raise ConfigErrors naming all that this machine lacks; nothing is started and nothing heavy imported.

    `model=False` leaves the model out, where it is about to be made."""
    asked = warm_start.bind(unselected(built)) and model
    errors: list[ConfigError] = unmet(built)
    for component in (built.sandbox, built.inference, *((built.model,) if asked else ()), built.tasks):
        errors += component.problems()
    if built.compute.device == "cuda" and not any(any(Path("/dev").glob(pattern)) for pattern in _GPUS):
        way_out = "set compute.device=cpu, or run where a GPU is visible"
        errors.append(ConfigError("compute.device", "cuda", "no GPU is visible on this machine", way_out))
    for harness in built.harnesses.values():
        errors += harness.problems(images)
    errors += _unbuilt(built, images)
    if errors:
        raise ConfigErrors(errors)


def check_grading(built: Built, images: ImageStore) -> None:
    """The same of what grading alone needs: sandboxes, tasks, the toolchain."""
    errors = [*unmet(built), *built.sandbox.problems(), *built.tasks.problems(), *_unbuilt(built, images)]
    if errors:
        raise ConfigErrors(errors)


def _unbuilt(built: Built, images: ImageStore) -> list[ConfigError]:
    """Images of tasks and grader that are not there; of runtimes each harness tells by itself."""
    return [
        ConfigError(key, spec.name, "is not built on this machine", "run the same command with job=prepare")
        for key, spec in images_needed(built).items()
        if not key.startswith("harnesses.") and not (images.path(spec) / ".complete").exists()
    ]


@asynccontextmanager
async def open_workbench(
    built: Built, layout: Layout, images: DebianImageStore, tell: Callable[[str], None], say: Say
) -> AsyncIterator[Workbench]:
    """Start all components; on leaving, by success, error or cancellation, stop what was started.

    `tell` hears what is being started or stopped, `say` of an engine that is started again.

    What fails while stopping is raised only where nothing else is: the first failure says what is wrong."""
    model = built.model.info()
    async with _stopped_at_the_end(built, layout, tell):
        # First: it refuses a renderer or limits that fit model or harness ill in a second, an engine takes a minute.
        tell("starting the proxy")
        await built.proxy.start(model, built.inference)
        await asyncio.to_thread(built.proxy.check, built.harnesses)
        tell("starting sandboxes")
        await built.sandbox.start(images, layout.root.name)
        tell("starting inference and trainer")
        await _start_trainer_and_engine(built, model, layout, tell)
        yield Workbench(
            model=model,
            engine=EngineKeeper(built.inference, built.schedule.engine_restarts, say),
            trainer=built.train,
            shop=Workshop.of(built, images, built.proxy, layout.scratch),
        )


@asynccontextmanager
async def open_shop(
    built: Built, layout: Layout, images: ImageStore, tell: Callable[[str], None], *, engine: bool
) -> AsyncIterator[Workshop]:
    """The same for trials that nobody trains on: without the trainer, and without `engine` sandboxes alone."""
    async with _stopped_at_the_end(built, layout, tell):
        if engine:
            tell("starting the proxy")
            await built.proxy.start(built.model.info(), built.inference)
            await asyncio.to_thread(built.proxy.check, built.harnesses)
        tell("starting sandboxes")
        await built.sandbox.start(images, layout.root.name)
        if engine:
            tell("starting inference")
            await built.inference.start(built.model.info(), layout.logs)
        yield Workshop.of(built, images, built.proxy, layout.scratch)


@asynccontextmanager
async def _stopped_at_the_end(built: Built, layout: Layout, tell: Callable[[str], None]) -> AsyncIterator[None]:
    problems: list[Exception] = []
    layout.scratch.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        tell("stopping")
        problems += await to_the_end(stop_all(built))
        with contextlib.suppress(OSError):  # a trial that was cut off may have left something there to look at
            layout.scratch.rmdir()
    for problem in problems:
        raise problem


async def _start_trainer_and_engine(
    built: Built, model: ModelInfo, layout: Layout, tell: Callable[[str], None]
) -> None:
    """Both at once; when one fails, the other is not waited for longer than it must (a thread cannot be ended)."""
    start = asyncio.to_thread(built.train.start, model, built.algorithm, built.routing_replay, built.seed)
    trainer = asyncio.create_task(start)
    engine = asyncio.create_task(built.inference.start(model, layout.logs))
    trainer.add_done_callback(lambda _: None if engine.done() else tell("starting inference"))
    engine.add_done_callback(lambda _: None if trainer.done() else tell("starting the trainer"))
    try:
        await asyncio.wait([trainer, engine], return_when=asyncio.FIRST_EXCEPTION)
    finally:
        engine.cancel()
        await asyncio.gather(trainer, engine, return_exceptions=True)
    trainer.result()
    engine.result()


async def stop_all(built: Built) -> list[Exception]:
    """Stop all in reverse; every `stop` is idempotent, so what never started is no special case. Returns what failed.

    The trainer is asked first: an update in its thread then ends while the others do."""
    problems: list[Exception] = []
    built.train.stop()
    for component in (built.proxy, built.inference, built.sandbox):
        try:
            await component.stop()
        except Exception as problem:
            problems.append(problem)
    return problems
