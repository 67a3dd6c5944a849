"""`job=delivery`: what each way of delivering an image costs (the paper's Figure 10), for the tasks' first image.

Pushes it, and a second one that differs in some files, to a registry in each format, then measures all modes in turn:
start-up, network, disk, reading. Writes `reports/delivery.json` and `.html` into the run's directory. Starts sandboxes
and, unless one is named, a registry on loopback, which ends with the job. Refuses sandboxes that are not of this
machine, and an image that is not prepared.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from engine.config.built import Built
from engine.core.contracts import RemoteRuntime
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.temporary import temporary_folder
from engine.core.threads import in_thread
from engine.core.whole import write_whole
from engine.observe.delivery import Delivery, page, reasons, table
from engine.observe.progress import ProgressView, make_progress
from engine.run.capabilities import unmet
from engine.run.delivery import Roots, change_some, from_folder, from_registry
from engine.run.directory import open_directory
from engine.run.jobs.report import show_table
from engine.sandbox.image_tools import missing_tools
from engine.sandbox.images import DebianImageStore
from engine.sandbox.loopback_registry import Counted, counting_relay, loopback_registry, missing_registry
from engine.sandbox.pushed import CONVERTERS, FORMATS, Format, push
from engine.sandbox.references import Reference, check_registry, parse_reference
from engine.store.writer import Writer

_KEY = "job.registry"
_LOCAL = "local"
_HERE = tuple(form for form in FORMATS if form not in CONVERTERS)
_LAZY = "sandboxes of this machine have no snapshotter that mounts it while it is fetched; a cluster's nodes may"


class DeliveryJob:
    """Measures deliveries.

    Args:
        registry: where the images are pushed to and pulled from; None: a registry of the job's own.
        plain_http: whether a registry beyond loopback is spoken to by HTTP.
        modes: what is measured.
        pairs: measurements of each.
        changed: share of the files that differ in the second image.
    """

    def __init__(
        self,
        *,
        registry: str | None,
        plain_http: bool,
        modes: Sequence[Literal["local"] | Format],
        pairs: int,
        changed: float,
    ) -> None:
        self.registry = registry
        self.plain_http = plain_http
        self.modes = modes
        self.pairs = pairs
        self.changed = changed

    async def run(self, built: Built) -> int:
        """Exit code 0 when the table stands; the page's path is the last line."""
        image = self.check(built)
        missing: dict[str, str] = {mode: _LAZY for mode in self.modes if mode in CONVERTERS}
        modes = [mode for mode in self.modes if mode not in missing]
        with open_directory(built) as layout:
            with make_progress(built.observe.progress_interval_s) as progress:
                found = await self.measure(built, image, modes, progress)
            measured = {mode: [asdict(one) for one in each] for mode, each in found.items()}
            Writer(layout).json(
                "reports/delivery.json", {"image": image.name, "measured": measured, "missing": missing}
            )
            target = layout.reports / "delivery.html"
            write_whole(target, page(f"Delivery of {image.name}", found, missing).encode())
        show_table(*table(found, missing))
        for line in reasons(missing):
            print(line)
        print(target)
        return 0

    def check(self, built: Built) -> Path:
        """The image's root. Raises ConfigErrors."""
        if isinstance(built.sandbox, RemoteRuntime):
            problem, way_out = "what is measured is this machine", "choose sandbox=bubblewrap or sandbox=podman"
            raise ConfigError("sandbox", built.config["sandbox"]["_target_"], problem, way_out)
        if not set(self.modes) & {_LOCAL, *_HERE}:
            raise ConfigError("job.modes", list(self.modes), _LAZY, f"name one of {', '.join((_LOCAL, *_HERE))} too")
        images, spec = DebianImageStore(), built.tasks.images()[0]
        problems = [*unmet(built), *built.sandbox.problems()]
        if not images.has(spec):
            way_out = "run the same command with job=prepare"
            problems.append(ConfigError(f"tasks (image {spec.name})", spec.name, "is not built here", way_out))
        if set(self.modes) & set(_HERE):
            problems += missing_tools(_KEY, self.registry)
            problems += missing_registry(_KEY, None) if self.registry is None else []
        if problems:
            raise ConfigErrors(problems)
        return images.path(spec)

    async def measure(
        self, built: Built, image: Path, modes: Sequence[str], progress: ProgressView
    ) -> Mapping[str, Sequence[Delivery]]:
        """By mode, one after the other."""
        found: dict[str, list[Delivery]] = {mode: [] for mode in modes}
        with temporary_folder("delivery", image.parent) as folder:
            roots = Roots(first=image, second=folder / f"{image.name}-next")
            await in_thread(change_some, roots.first, roots.second, self.changed)
            formats = [form for form in FORMATS if form in modes]
            async with self._registry(folder, formats) as (registry, counted):
                pushed: dict[str, Sequence[Reference]] = {
                    form: await self._push(roots, registry, form, folder, progress) for form in formats
                }
                for number in range(self.pairs):
                    for mode in (*modes[number % len(modes) :], *modes[: number % len(modes)]):
                        progress.phase("measuring", sum(map(len, found.values())), self.pairs * len(modes), mode)
                        if mode == _LOCAL:
                            one = await from_folder(built, roots, mode, progress.say)
                        else:
                            images = [_through(reference, counted) for reference in pushed[mode]]
                            one = await from_registry(built, images, counted, mode, self.plain_http, progress.say)
                        found[mode].append(one)
        return found

    @contextlib.asynccontextmanager
    async def _registry(self, folder: Path, formats: Sequence[str]) -> AsyncIterator[tuple[str, Counted | None]]:
        """Where images go, and what counts the bytes of what comes back."""
        async with contextlib.AsyncExitStack() as held:
            if not formats:
                yield "", None
                return
            if self.registry is None:
                registry = await held.enter_async_context(loopback_registry(folder / "registry"))
            else:
                registry = check_registry(_KEY, self.registry)
            host = registry.partition("/")[0]
            plain = self.plain_http or parse_reference(_KEY, f"{registry}/any").loopback
            counted = await held.enter_async_context(counting_relay(host)) if plain and ":" in host else None
            yield registry, counted

    async def _push(
        self, roots: Roots, registry: str, form: Format, folder: Path, progress: ProgressView
    ) -> tuple[Reference, Reference]:
        """Both images in one format, in a place of its own: tags say what is in an image, not how it is packed."""
        name, _, digest = roots.first.name.rpartition("-")
        place = f"{registry}/{form.replace(':', '-')}/{name}:{digest}"
        tools = DebianImageStore(folder / "pushing", plain_http=self.plain_http).tools()
        references = (parse_reference(_KEY, place), parse_reference(_KEY, f"{place}-changed{self.changed:g}"))
        for root, reference in zip((roots.first, roots.second), references, strict=True):
            progress.phase("pushing", 0, 0, str(reference))
            await push(root, reference, form, tools, progress.say)
        return references


def _through(reference: Reference, counted: Counted | None) -> Reference:
    return reference if counted is None else replace(reference, host=counted.address)
