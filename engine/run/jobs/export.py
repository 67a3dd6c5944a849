"""`job=export`: the trajectories of a run in a form that other programs read.

Starts nothing, and reads a run that is still going on like a finished one. Invariant: the folder appears whole, or not
at all. Refuses a folder that is there already, and one that holds no run.
"""

import asyncio
from pathlib import Path
from typing import Literal

from engine.config.built import Built
from engine.core.contracts import Say
from engine.core.errors import ConfigError, RunError
from engine.core.records import Split
from engine.core.temporary import temporary_folder
from engine.core.whole import check_free, move_into_place
from engine.observe.atif.export import write
from engine.observe.chosen import Named, chosen
from engine.observe.curves import check_runs
from engine.observe.progress import ProgressView, make_progress
from engine.run.drain import ended_by_its_words
from engine.store.layout import Layout
from engine.store.reader import Reader


class ExportJob:
    """Writes one file per trajectory.

    Args:
        run: folder of the run; None: the run of this configuration.
        format: of the files.
        to: folder that is made; None: `reports/<format>` of the run.
        split: which trials; None: all.
        step: of which step, from 0; None: of all.
        prompt_ids: whether each call's whole prompt is told by its token ids.
    """

    def __init__(
        self,
        *,
        run: str | None,
        format: Literal["atif"],
        to: str | None,
        split: Split | None,
        step: int | None,
        prompt_ids: bool,
    ) -> None:
        self.source = run
        self.format = format
        self.to = to
        self.split = split
        self.step = step
        self.prompt_ids = prompt_ids

    async def run(self, built: Built) -> int:
        """Exit code 0; the last line is the folder. Raises ConfigError, and RunError on a damaged trial."""
        root = Path(self.source) if self.source is not None else built.directory
        check_runs("job.run", [root])
        reader = Reader(Layout(root=root))
        to = Path(self.to) if self.to is not None else reader.layout.reports / self.format
        check_free("job.to", to, "folder")
        _check_apart(to, reader.layout)
        trials = chosen(reader, self.split, self.step)
        with make_progress(built.observe.progress_interval_s) as progress:

            async def work(say: Say) -> int:
                return await asyncio.to_thread(self._write, reader, trials, to, progress, say)

            files = await ended_by_its_words(work, lambda _: None)
        print(f"{files} files of {len(trials)} trials")
        print(to)
        return 0

    def _write(self, reader: Reader, trials: list[Named], to: Path, progress: ProgressView, say: Say) -> int:
        files = 0
        try:
            with temporary_folder("export", to.parent) as draft:
                for number, written in enumerate(write(reader, trials, draft / to.name, self.prompt_ids), 1):
                    say(trials[number - 1].name)
                    files += written
                    progress.phase("exporting", number, len(trials), f"{files} files")
                if files == 0:
                    raise RunError("every trial was taken back by the run while it was read; export it again")
                check_free("job.to", to, "folder")
                move_into_place(draft / to.name, to)
        except OSError as error:
            problem = f"cannot be made or written ({error.strerror})"
            raise ConfigError("job.to", str(to), problem, "name a folder to write to") from error
        return files


def _check_apart(to: Path, layout: Layout) -> None:
    """A folder among the run's own would be read as a part of it."""
    root, there = layout.root.resolve(), to.resolve()
    if there.is_relative_to(root) and not there.is_relative_to(layout.reports.resolve()):
        way = f"leave it null for {layout.reports}, or name a folder outside the run"
        raise ConfigError("job.to", str(to), "lies among the run's own files", way)
