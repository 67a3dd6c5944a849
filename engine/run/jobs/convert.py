"""`job=convert`: rows of public task sets become one table of the project's own, and, where it can be, directories.

Starts nothing. Every row is accounted for: `NAME.report.json` beside the table names each that is bad, copied, or
cannot be run on this machine, and why. Invariant: each of table, report and folder of directories appears whole, the
table last; a refused set leaves none of them. Refuses bad rows unless it is told to leave them out, and to write over
what is there.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from engine.config.built import Built
from engine.core.contracts import Say
from engine.core.errors import ConfigError, ConfigErrors
from engine.core.specs import ImageSpec
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place, write_whole
from engine.observe.progress import ProgressView, make_progress
from engine.run.drain import ended_by_its_words
from engine.store.tables import write_table
from engine.tasks.harbor import Limits
from engine.tasks.rows.checkouts import Checkouts
from engine.tasks.rows.funnel import Outcome, funnel_lines, report
from engine.tasks.rows.placing import Place, put
from engine.tasks.rows.reading import TOLD, Source, Wanted
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.stored import to_plain

_SHOW_EVERY = 64
"""Rows between two changes of what is shown."""
_ABANDONED_S = 600


class ConvertJob:
    """Reads a file or folder of rows and writes a parquet table.

    Args:
        path: file of rows, folder of such files, or (folder of) Harbor task directories.
        format: of the rows; None: recognised by their columns.
        to: the table that is made, a `.parquet` file.
        split: of the set; None: all.
        ids: tasks that are taken; empty: all.
        repositories: whose tasks are taken (`owner/name`); empty: of all.
        limit: how many tasks are taken at most; None: all.
        bad_rows: whether rows that cannot be read end the job or are left out.
        checkouts: folder of git clones, from which directories are made.
        directories: folder of task directories that is made; None: none is.
        limits: what a trial of such a task may use.
    """

    def __init__(
        self,
        *,
        path: str,
        format: str | None,
        to: str,
        split: str | None,
        ids: Sequence[str],
        repositories: Sequence[str],
        limit: int | None,
        bad_rows: Literal["refuse", "leave_out"],
        checkouts: str | None,
        directories: str | None,
        limits: Mapping[str, Any],
    ) -> None:
        self.path = path
        self.format = format
        self.to = to
        self.split = split
        self.ids = ids
        self.repositories = repositories
        self.limit = limit
        self.bad_rows = bad_rows
        self.checkouts = checkouts
        self.directories = directories
        self.limits = limits

    async def run(self, built: Built) -> int:
        """Exit code 0; the last line is the table. Raises ConfigErrors, which name file, row, id, column and value."""
        self._check()
        _remove_drafts(_place(self.to).absolute())
        images = built.tasks.images()
        with make_progress(built.observe.progress_interval_s) as progress:

            async def work(say: Say) -> list[str]:
                return await asyncio.to_thread(self._convert, images[0], progress, say)

            lines = await ended_by_its_words(work, lambda _: None)
        print("\n".join(lines))
        print(self.to)
        return 0

    def _check(self) -> None:
        errors = []
        for key, name in (("to", self.to), ("directories", self.directories)):
            if name is not None and (_place(name).exists() or _place(name).is_symlink()):
                errors.append(ConfigError(f"job.{key}", name, "is there already", "name another, or remove this one"))
        if not self.to.endswith(".parquet"):
            errors.append(ConfigError("job.to", self.to, "is no name of a parquet file", "let it end in .parquet"))
        if (self.checkouts is None) != (self.directories is None):
            key, other = ("checkouts", "directories") if self.checkouts is None else ("directories", "checkouts")
            problem = f"is null, and job.{other} is not"
            errors.append(ConfigError(f"job.{key}", None, problem, "set both, or neither"))
        if self.checkouts is not None and not _place(self.checkouts).is_dir():
            errors.append(ConfigError("job.checkouts", self.checkouts, "is no folder", "name the folder of git clones"))
        if errors:
            raise ConfigErrors(errors)

    def _convert(self, image: ImageSpec, progress: ProgressView, say: Say) -> list[str]:
        def tell(done: int, total: int | None) -> None:
            say("")  # where an interruption ends this thread
            if done % _SHOW_EVERY == 1 or done == total:
                progress.phase("reading rows", done, total or 0, "" if total else f"{done} rows")

        wanted = Wanted(
            group="job",
            format=self.format,
            split=self.split,
            ids=self.ids,
            repositories=self.repositories,
            limit=self.limit,
        )
        source, outcome = Source(_place(self.path), wanted, tell), Outcome()
        with ExitStack() as held:
            place = None
            if self.directories is not None and self.checkouts is not None:
                parent = _place(self.directories).absolute().parent
                folder = held.enter_context(temporary_folder("convert", parent)) / "tasks"
                clones = Checkouts(_place(self.checkouts))
                place = Place(folder=folder, clones=clones, image=image, limits=Limits(**self.limits))
            write_table(_place(self.to).absolute(), "task", map(to_plain, self._chosen(source, outcome, place)))
        for error in source.account.bad[:TOLD]:
            print(error, file=sys.stderr)
        return funnel_lines(source.account, outcome)

    def _chosen(self, source: Source, outcome: Outcome, place: Place | None) -> Iterator[TaskRow]:
        """The rows of the table; on the way each becomes a directory or gets its reason, and at the end all that lies
        beside the table is put there. Raises ConfigErrors where nothing may be written."""
        for row in source.rows():
            put(row, place, outcome)
            yield row
        account = source.account
        account.check("job", self.path, self.bad_rows == "refuse")
        if place is not None and outcome.written:
            move_into_place(place.folder, _place(self.directories or "").absolute())
        told = json.dumps(report(account, outcome), indent=1, ensure_ascii=False) + "\n"
        write_whole(_place(self.to).absolute().with_suffix(".report.json"), told.encode(errors="replace"))


def _place(name: str) -> Path:
    return Path(name).expanduser()


def _remove_drafts(table: Path) -> None:
    """What a killed job has left beside the table; one that writes there now has younger ones."""
    for draft in table.parent.glob(f".{table.name}.draft-*"):
        if draft.stat().st_mtime <= time.time() - _ABANDONED_S:
            draft.unlink()
