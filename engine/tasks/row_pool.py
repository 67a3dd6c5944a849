"""A pool of rows of public task sets whose repositories lie on this machine as git clones.

    prepare   rows → task directories, in the cache; of each row that has none, why
    audit     each directory is tried: its reference must pass, its untouched base must not
    load      those that hold

Nothing is installed and no container image is pulled, so of a public set only what runs in the pool's own image holds;
the rest is named, never trained on. Invariant: a pool that is loaded holds proven tasks alone, the same ones until
`job=prepare` is run again. Refuses a pool in which nothing holds.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from engine.core.contracts import ImageStore, SandboxRuntime, Say
from engine.core.errors import ConfigError, ConfigErrors, RunError
from engine.core.paths import cache_dir
from engine.core.records import Task
from engine.core.specs import ImageSpec
from engine.core.task_contracts import Verifier
from engine.core.whole import write_whole
from engine.tasks.harbor import Limits, read_task
from engine.tasks.pool import check_names, image_spec, split_of
from engine.tasks.proving import prove, read_finding
from engine.tasks.rows.checkouts import Checkouts
from engine.tasks.rows.funnel import Outcome, funnel_lines, report
from engine.tasks.rows.placing import Place, put
from engine.tasks.rows.reading import TOLD, Source, Wanted
from engine.tasks.rows.record import TaskRow

_LAYOUT = 1
"""Raise when what is built from the same rows changes."""
_AT_ONCE = 16
"""Rows between two moments at which a preparation can be ended."""
_SAY_EVERY, _SLOW = 1024, 64
"""Rows between two lines of progress; a directory counts for as many rows."""
_PREPARE = "run the same command with job=prepare"


class TaskRows:
    """Rows below one path: `contracts.TaskPool` and `contracts.AuditedPool`.

    Args:
        path: file of rows, or folder of such files.
        format: of the rows; None: recognised by their columns.
        split: of the set; None: all.
        ids: tasks that are taken; empty: all.
        repositories: whose tasks are taken (`owner/name`); empty: of all.
        limit: how many rows are taken at most; None: all.
        bad_rows: whether rows that cannot be read end the preparation or are left out.
        checkouts: folder of git clones.
        validation: names of tasks or repositories that are held out.
        limits: what a trial of a task may use.
        image: the root file system that agent and grader work in.
    """

    def __init__(
        self,
        *,
        path: str,
        format: str | None,
        split: str | None,
        ids: Sequence[str],
        repositories: Sequence[str],
        limit: int | None,
        bad_rows: Literal["refuse", "leave_out"],
        checkouts: str,
        validation: Sequence[str],
        limits: Mapping[str, Any],
        image: Mapping[str, Any],
    ) -> None:
        self.path = path
        self.format = format
        self.split = split
        self.ids = ids
        self.repositories = repositories
        self.limit = limit
        self.bad_rows = bad_rows
        self.checkouts = checkouts
        self.validation = validation
        self.limits = limits
        self.image = image

    def problems(self) -> list[ConfigError]:
        """Rows or clones that are not there, a pool that is not built or not tried, unknown names."""
        missing = self._missing()
        if missing:
            return missing
        built, tried = self._read("pool.json"), self._read("tried.json")
        if built is None:
            return [ConfigError("tasks.path", self.path, "its tasks are not built here", _PREPARE)]
        names = built["repositories"]
        left = [name for name in names if name not in (tried or {})]
        if left:
            problem = f"{len(left)} of {len(names)} tasks were not tried yet ({left[0]}{', …' if left[1:] else ''})"
            return [ConfigError("tasks.path", self.path, problem, _PREPARE)]
        return check_names("tasks.validation", self.validation, list(names.items()))

    def images(self) -> tuple[ImageSpec, ...]:
        """The one image of all tasks."""
        return (image_spec(self.image),)

    async def prepare(self, say: Say) -> None:
        """Make a directory of every row for which that can be done; says the funnel. Raises ConfigErrors."""
        missing = self._missing()
        if missing:
            raise ConfigErrors(missing)
        outcome, repositories, said = Outcome(), dict[str, str](), 0
        source = await asyncio.to_thread(self._source)
        rows = source.rows()
        while taken := await asyncio.to_thread(self._some, rows, outcome):
            made = set(outcome.written[-_AT_ONCE:])
            repositories |= {row.id: row.repository for row in taken if row.id in made}
            if source.account.read + _SLOW * len(outcome.written) >= said + _SAY_EVERY:
                said = source.account.read + _SLOW * len(outcome.written)
                say(f"tasks: {source.account.read} rows read, {len(outcome.written)} directories")
        source.account.check("tasks", self.path, self.bad_rows == "refuse")
        for error in source.account.bad[:TOLD]:
            say(f"tasks: {error}")
        for line in funnel_lines(source.account, outcome):
            say(f"tasks: {line}")
        told = {"repositories": repositories, **report(source.account, outcome)}
        await asyncio.to_thread(self._write, "pool.json", told)
        if not repositories:
            problem = f"no task can be run here; {self.directory / 'pool.json'} says why of each"
            raise ConfigError("tasks.path", self.path, problem, "choose other rows, or clone their repositories")

    async def audit(self, runtime: SandboxRuntime, images: ImageStore, verifier: Verifier, say: Say) -> None:
        """Try every task that was not found to hold yet. Raises RunError where none holds."""
        tasks = await asyncio.to_thread(self._tasks, list((self._read("pool.json") or {})["repositories"]))
        await prove(tasks, (runtime, images, verifier), say)
        found = {task.id: read_finding(task) for task in tasks}
        await asyncio.to_thread(self._write, "tried.json", found)
        holding = sum(finding == "" for finding in found.values())
        say(f"tasks: {holding} of {len(found)} hold; {self.directory / 'tried.json'} says why of the others")
        if not holding:
            raise RunError(
                f"none of the {len(found)} tasks of {self.path} holds in the image of tasks.image; add what they need "
                "to tasks.image.packages or tasks.image.pip, or choose other rows"
            )

    def load(self) -> tuple[Task, ...]:
        """All tasks that hold, by name. Raises ConfigError when they are not built or not tried."""
        problems = self.problems()
        if problems:
            raise problems[0]
        return self._tasks([name for name, finding in (self._read("tried.json") or {}).items() if finding == ""])

    @property
    def directory(self) -> Path:
        """Where the pool lies: named by all that decides it but the clones, which a commit's id stands for."""
        path = _place(self.path)
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        facts = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        chosen = (self.format, self.split, list(self.ids), list(self.repositories), self.limit, self.bad_rows)
        text = json.dumps([_LAYOUT, str(path.absolute()), facts, chosen, dict(self.limits), repr(self.images()[0])])
        return cache_dir() / "tasks" / f"rows-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def _missing(self) -> list[ConfigError]:
        return [
            ConfigError(f"tasks.{key}", name, "there is no such file or folder", "name what is on this machine")
            for key, name in (("path", self.path), ("checkouts", self.checkouts))
            if not _place(name).exists()
        ]

    def _source(self) -> Source:
        wanted = Wanted(
            group="tasks",
            format=self.format,
            split=self.split,
            ids=self.ids,
            repositories=self.repositories,
            limit=self.limit,
        )
        return Source(_place(self.path), wanted, lambda *_: None)

    def _some(self, rows: Iterator[TaskRow], outcome: Outcome) -> list[TaskRow]:
        """The next rows, each accounted for."""
        place = Place(
            folder=self.directory / "tasks",
            clones=Checkouts(_place(self.checkouts)),
            image=self.images()[0],
            limits=Limits(**self.limits),
        )
        taken = list(islice(rows, _AT_ONCE))
        for row in taken:
            put(row, place, outcome)
        return taken

    def _tasks(self, names: Sequence[str]) -> tuple[Task, ...]:
        repositories = (self._read("pool.json") or {})["repositories"]
        (image,) = self.images()
        return tuple(
            read_task(
                self.directory / "tasks" / name,
                split=split_of((name, repositories[name]), self.validation),
                image=image,
            )
            for name in sorted(names)
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.directory / name).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_whole(self.directory / name, (json.dumps(value, indent=1) + "\n").encode())


def _place(name: str) -> Path:
    return Path(name).expanduser()
