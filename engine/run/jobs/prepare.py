"""`job=prepare`: build once on this machine what the configured run needs. Interrupted, it goes on where it stopped."""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product

from engine.config.built import Built
from engine.core.contracts import ImageStore, Say
from engine.core.errors import ConfigError, ConfigErrors, EnvironmentFailure
from engine.core.paths import cache_dir
from engine.core.task_contracts import AuditedPool, DoubtedPool, TaskPool
from engine.core.together import side_by_side
from engine.observe.progress import ProgressView, make_progress
from engine.run import warm_start
from engine.run.capabilities import unmet
from engine.run.drain import ended_by_its_words
from engine.run.handed_in import HandedIn
from engine.run.selection import left_out, unselected
from engine.run.workbench import build_reach, check_machine, images_needed
from engine.sandbox.images import DebianImageStore
from engine.sandbox.references import check_registry


class PrepareJob:
    """Images, harness runtimes, the grader's toolchain, the model and the tasks.

    Args:
        registry: where images that `job=push` has put are pulled from instead of being built; None: nowhere.
        plain_http: whether registries beyond loopback are spoken to by HTTP.
    """

    def __init__(self, *, registry: str | None, plain_http: bool) -> None:
        self.registry = registry
        self.plain_http = plain_http

    async def run(self, built: Built) -> int:
        """Exit code 0 when the same configuration can run afterwards."""
        _check_cache()
        if problems := unmet(built):
            raise ConfigErrors(problems)
        registry = None if self.registry is None else check_registry("job.registry", self.registry)
        images = DebianImageStore(reach=build_reach(built), registry=registry, plain_http=self.plain_http)
        with make_progress(built.observe.progress_interval_s) as progress:
            progress.phase("preparing sandboxes", 0, 0, "")
            await built.sandbox.prepare(progress.say)
            progress.phase("preparing inference", 0, 0, "")
            await built.inference.prepare(progress.say)
            await _fetch_and_build(built, images, progress)
            progress.phase("trying the tasks", 0, 0, "")
            await _audit(built, images, progress.say)
            await inspect_tasks(built, images, progress.say)
            check_machine(built, images, model=False)
            tasks = built.tasks.load()
            for line in left_out(built.tasks):
                progress.say(line)
            progress.phase("preparing the model", 0, 0, "")
            await built.model.prepare(progress.say)
            await ended_by_its_words(partial(warm_start.make, unselected(built), images), progress.say)
            check_machine(built, images)
            progress.say(f"prepared: {len(tasks)} tasks, model {built.model.info().name}")
        return 0


async def _fetch_and_build(built: Built, images: DebianImageStore, progress: ProgressView) -> None:
    """What the tasks need from elsewhere, and the images, which wait on the network half of the time."""
    jobs: dict[str, Callable[[], Awaitable[object]]] = {"tasks": partial(built.tasks.prepare, progress.say)}
    needed = images_needed(built)
    problems = await images.unavailable(tuple(needed.values()))
    if problems:
        raise ConfigErrors(problems)
    for key, spec in needed.items():
        jobs[f"image of {key}"] = partial(images.build, spec, progress.say)
    left = list(jobs)

    def show() -> None:
        progress.phase("fetching and building", len(jobs) - len(left), len(jobs), ", ".join(left))

    async def one(name: str, job: Callable[[], Awaitable[object]]) -> None:
        await job()
        left.remove(name)
        show()

    show()
    await side_by_side([partial(one, name, job) for name, job in jobs.items()], len(jobs))


async def _audit(built: Built, images: ImageStore, say: Say) -> None:
    """Let a pool that tries its tasks do so in this run's sandboxes, graded by this run's verifier."""
    pool = built.tasks
    if not isinstance(pool, AuditedPool) or not (pool.problems() or _doubts(pool)):
        return
    problems = built.sandbox.problems()
    if problems:
        raise ConfigErrors(problems)
    await built.sandbox.start(images, f"prepare-{built.hash}")
    try:
        await pool.audit(built.sandbox, images, HandedIn(built.verify, built.defense.stages), say)
    finally:
        await built.sandbox.stop()
    left = _doubts(pool)
    if left:
        raise ConfigErrors(left)


async def inspect_tasks(built: Built, images: ImageStore, say: Say) -> None:
    """Let the defences look into what the agent will see of each task, as they will before each trial. Raises
    ConfigErrors naming the tasks that they refuse."""
    refused = []
    runtimes = [harness.mount(images).source for harness in built.harnesses.values()]
    for task in built.tasks.load():
        for defense, root in product(built.defense.stages, (images.path(task.image), *runtimes)):
            try:
                for finding in await defense.inspect(task, root):
                    say(f"task {task.id}: {finding.detail} ({', '.join(finding.paths)})")
            except EnvironmentFailure as failure:
                way_out = f"build that without it, leave the task out, or have {defense.name} in defense.stages observe"
                refused.append(ConfigError("tasks", task.id, str(failure), way_out))
    if refused:
        raise ConfigErrors(refused)


def _doubts(pool: TaskPool) -> Sequence[ConfigError]:
    """What an audit left to say of a pool whose tasks are the user's own."""
    return pool.doubts(pool.load()) if isinstance(pool, DoubtedPool) else ()


def _check_cache() -> None:
    """Everything is built below the cache directory. Raises ConfigError where it cannot be written."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir()):
            pass
    except OSError as error:
        problem = f"the cache directory cannot be made or written ({error.strerror})"
        raise ConfigError("LEGO_RL_CACHE", str(cache_dir()), problem, "set it to a folder to write to") from error
