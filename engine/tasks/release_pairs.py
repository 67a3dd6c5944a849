"""Tasks from pairs of consecutive releases of real packages: the repository is release N, its tests those of N+1.

A pair is a fact of this project (`data/release_pairs.json`): names, hashes, test ids. Everything else, source, tests
and the issue text, which is what the package's own change log says of N+1, is read from the two source distributions
when the task is built. Nothing is installed; documentation and metadata stay at N.

Invariant: `cache/tasks/DIGEST/NAME` holds the whole task or does not exist; the digest covers the pair, the image and
the layout. Refuses a change log that does not name the release, a source or test file that the archive lacks.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from engine.core.contracts import Say
from engine.core.errors import ConfigError, RunError
from engine.core.patch import difference, under
from engine.core.paths import cache_dir
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place
from engine.tasks.changelog import release_notes
from engine.tasks.grading import Grading
from engine.tasks.harbor import Draft, Limits, read_task, write_task
from engine.tasks.pool import check_names, image_spec, split_of
from engine.tasks.sdists import Sdist, fetch, unpack

_LAYOUT = 1
"""Raise when what is built from the same facts changes."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two consecutive releases, and the tests that tell them apart."""

    name: str
    package: str
    license: str
    base: Sdist
    fixed: Sdist
    changelog: str
    """Path of the change log within the fixed release."""
    source_files: tuple[str, ...]
    """Non-test source files that differ: the reference patch."""
    grading: Grading

    def names(self) -> tuple[str, str]:
        """What a configuration may call it: its own name, or its package's."""
        return self.name, self.package


@cache
def known_pairs() -> tuple[Pair, ...]:
    """The project's list, by name."""
    text = (resources.files("engine.tasks") / "data" / "release_pairs.json").read_text(encoding="utf-8")
    return tuple(_pair(entry) for entry in json.loads(text)["pairs"])


def _pair(entry: Mapping[str, Any]) -> Pair:
    sdists = [
        Sdist(package=entry["package"], version=side["version"], file=side["sdist"], sha256=side["sha256"])
        for side in (entry["base"], entry["fixed"])
    ]
    keys = ("test_paths", "python_path", "fail_to_pass", "pass_to_pass")
    return Pair(
        name=entry["name"],
        package=entry["package"],
        license=entry["license"],
        base=sdists[0],
        fixed=sdists[1],
        changelog=entry["changelog"],
        source_files=tuple(entry["source_files"]),
        grading=Grading(**{key: tuple(entry[key]) for key in keys}),
    )


def make_draft(pair: Pair, *, image: ImageSpec, limits: Limits, workdir: str) -> Draft:
    """The task of a pair whose sdists are in the cache. Raises RunError."""
    base, fixed = unpack(pair.base), unpack(pair.fixed)
    try:
        notes = release_notes(fixed[pair.changelog][0].decode(), pair.fixed.version)
        after = {**base, **{path: fixed[path] for path in pair.source_files}}
    except (KeyError, ValueError) as error:
        raise RunError(
            f"release pair {pair.name}: {pair.fixed.file} does not hold what the pair names: {error}"
        ) from error
    return Draft(
        name=f"release-pairs/{pair.name}",
        description=f"{pair.package} {pair.base.version}: bring about what release {pair.fixed.version} announces",
        instruction=_instruction(pair, notes, workdir),
        metadata={
            "package": pair.package,
            "license": pair.license,
            "base_release": pair.base.version,
            "fixed_release": pair.fixed.version,
            "source": "source distributions of the package index",
        },
        repository=base,
        withheld={path: held for path, held in fixed.items() if under(path, pair.grading.test_paths)},
        grading=pair.grading,
        reference=difference(base, after),
        workdir=workdir,
        image=image,
        limits=limits,
    )


def _instruction(pair: Pair, notes: str, workdir: str) -> str:
    return (
        f"The folder {workdir} holds the source of the Python package {pair.package} at release {pair.base.version}."
        f" The change log of its next release, {pair.fixed.version}, says:\n\n{notes}\n\n"
        f"Change the source code in {workdir} so that it behaves as the change log says. Tests that you do not see will"
        " check the behaviour, and that nothing else broke; changes to existing tests do not count.\n"
    )


class ReleasePairs:
    """The pool of release pairs: `contracts.TaskPool`."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        validation: Sequence[str],
        image: Mapping[str, Any],
        workdir: str,
        agent_timeout_s: float,
        grade_timeout_s: float,
        memory_mb: int,
        cpus: float,
    ) -> None:
        self.names = names
        self.validation = validation
        self.image = image
        self.workdir = workdir
        self.agent_timeout_s = agent_timeout_s
        self.grade_timeout_s = grade_timeout_s
        self.memory_mb = memory_mb
        self.cpus = cpus

    def problems(self) -> list[ConfigError]:
        """Unknown names, and tasks that are not built on this machine yet."""
        known = [pair.names() for pair in known_pairs()]
        errors = check_names("tasks.names", self.names, known) + check_names("tasks.validation", self.validation, known)
        if errors:
            return errors
        missing = [pair.name for pair in self._pairs() if not self._directory(pair).is_dir()]
        if missing:
            way_out = "run the same command with job=prepare"
            errors.append(ConfigError("tasks", "release_pairs", f"{len(missing)} tasks are not built here", way_out))
        return errors

    def images(self) -> tuple[ImageSpec, ...]:
        """The one image of all pairs."""
        return (image_spec(self.image),)

    async def prepare(self, say: Say) -> None:
        """Fetch sdists and build task directories, as far as they are missing."""
        missing = [pair for pair in self._pairs() if not self._directory(pair).is_dir()]
        await fetch([sdist for pair in missing for sdist in (pair.base, pair.fixed)], say)
        for index, pair in enumerate(missing, start=1):
            say(f"tasks: building {pair.name} ({index} of {len(missing)})")
            await asyncio.to_thread(self._build, pair)

    def load(self) -> tuple[Task, ...]:
        """All chosen tasks, by name. Raises ConfigError when they are not built."""
        (image,) = self.images()
        limits = self._limits()
        return tuple(
            replace(
                read_task(self._directory(pair), split=split_of(pair.names(), self.validation), image=image),
                agent_timeout_s=limits.agent_timeout_s,
                grade_timeout_s=limits.grade_timeout_s,
                memory_mb=limits.memory_mb,
                cpus=limits.cpus,
            )
            for pair in self._pairs()
        )

    def _pairs(self) -> tuple[Pair, ...]:
        chosen = set(self.names)
        return tuple(pair for pair in known_pairs() if not chosen or chosen & set(pair.names()))

    def _limits(self) -> Limits:
        return Limits(
            agent_timeout_s=self.agent_timeout_s,
            grade_timeout_s=self.grade_timeout_s,
            memory_mb=self.memory_mb,
            cpus=self.cpus,
        )

    def _directory(self, pair: Pair) -> Path:
        """Limits are laid over on loading, so they are no part of the digest."""
        (image,) = self.images()
        facts = [_LAYOUT, repr(pair), repr(image), self.workdir]
        return cache_dir() / "tasks" / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24] / pair.name

    def _build(self, pair: Pair) -> None:
        (image,) = self.images()
        draft = make_draft(pair, image=image, limits=self._limits(), workdir=self.workdir)
        final = self._directory(pair).parent
        with temporary_folder("build", final.parent) as scratch:
            write_task(draft, scratch / "new" / pair.name)
            move_into_place(scratch / "new", final)
