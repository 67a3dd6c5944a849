"""From a path to task rows, one after the other, and the account of every row that was met.

Invariant: each row that is read is counted once: chosen, passed over by a setting, bad, or a copy of an earlier one. A
bad row leaves an error, never nothing; so do names that were asked for and are not there.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from engine.core.errors import ConfigError, ConfigErrors
from engine.tasks.rows.files import SourceFile, source_files
from engine.tasks.rows.formats import Reader, reader_of
from engine.tasks.rows.harbor_folders import harbor_folders, read_harbor
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.stored import to_plain
from engine.tasks.rows.values import Raw

TOLD = 20
"""Bad rows that are told; a report has all."""
Tell = Callable[[int, int | None], None]
"""Takes how many rows were read, and of how many (None: unknown)."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which rows are asked for; None and empty: all."""

    group: str
    """Of the configuration that asks (`job`, `tasks`): errors name its keys."""
    format: str | None
    split: str | None
    ids: Sequence[str]
    repositories: Sequence[str]
    limit: int | None

    def takes(self, identity: str, repository: str) -> bool:
        """Whether a row is asked for by its id and its repository."""
        return (not self.ids or identity in self.ids) and (not self.repositories or repository in self.repositories)


@dataclass(kw_only=True)
class Account:
    """What became of the rows."""

    files: int = 0
    formats: list[str] = field(default_factory=list)
    """Of the files, each once."""
    read: int = 0
    passed_over: int = 0
    """By `split`, `ids` or `repositories`."""
    copies: list[str] = field(default_factory=list)
    """Ids that came again with the same contents, and where."""
    bad: list[ConfigError] = field(default_factory=list)
    chosen: int = 0
    limited: bool = False
    """Whether `limit` ended the reading, so that the rest is not known."""

    def check(self, group: str, path: str, refuse: bool) -> None:
        """At the end. Raises ConfigErrors for bad rows that are to be refused, and where no row was chosen."""
        bad = self.bad[:TOLD]
        if self.bad and refuse:
            problem = f"{len(self.bad)} of {self.read} rows are bad"
            problem += f", of which the first {TOLD} are told" if len(self.bad) > TOLD else ""
            way_out = f"mend them, or take the others alone with {group}.bad_rows=leave_out"
            raise ConfigErrors([*bad, ConfigError(f"{group}.bad_rows", "refuse", problem, way_out)])
        if not self.chosen:
            problem = f"gave no task: {self.read} rows read, {self.passed_over} passed over, {len(self.bad)} bad"
            raise ConfigErrors([*bad, ConfigError(f"{group}.path", path, problem, "choose other rows")])


class Source:
    """Rows of one path. `rows` is gone through once; `account` is right when it has ended."""

    def __init__(self, path: Path, wanted: Wanted, tell: Tell) -> None:
        """Raises ConfigErrors where a file cannot be opened or its format is not known."""
        self.account = Account()
        self._wanted = wanted
        self._tell = tell
        self._seen: dict[str, tuple[str, str]] = {}
        self._repositories: set[str] = set()
        self._folders = harbor_folders(path) if wanted.format in (None, "harbor") else []
        if wanted.format == "harbor" and not self._folders:
            way_out = "name a task directory or the folder above some"
            raise ConfigError(f"{wanted.group}.path", str(path), "no folder in it holds a task.toml", way_out)
        self._files = [] if self._folders else _with_readers(path, wanted)
        self.account.files = len(self._folders) or len(self._files)
        names = ["harbor"] if self._folders else [reader.name for _, reader in self._files]
        self.account.formats = list(dict.fromkeys(names))

    def rows(self) -> Iterator[TaskRow]:
        """All good rows that are asked for, in order. Raises ConfigErrors for names that are not there."""
        found = self._from_folders() if self._folders else chain.from_iterable(map(self._from_file, self._files))
        for place, row in found:
            if not self._is_new(place, row):
                continue
            self.account.chosen += 1
            yield row
            if self.account.chosen == self._wanted.limit:
                self.account.limited = True
                return
        self._check_names()

    def _from_file(self, opened: tuple[SourceFile, Reader]) -> Iterator[tuple[str, TaskRow]]:
        file, reader = opened
        totals = [each.rows for each, _ in self._files]
        total = None if None in totals else sum(filter(None, totals))
        for number, values in file.read():
            self.account.read += 1
            self._tell(self.account.read, total)
            raw = Raw(values, str(file.path), number)
            try:
                identity, repository = reader.head(raw)
                self._repositories.add(repository)
                split = raw.optional("split") or file.split
                if not self._wanted.takes(identity, repository) or self._wanted.split not in (None, split):
                    self._seen.setdefault(identity, ("", ""))
                    self.account.passed_over += 1
                    continue
                row = replace(reader.read(raw), split=split)
            except ConfigError as error:
                self.account.bad.append(error)
                continue
            yield f"{file.path}, row {number}", row

    def _from_folders(self) -> Iterator[tuple[str, TaskRow]]:
        for folder in self._folders:
            self.account.read += 1
            self._tell(self.account.read, len(self._folders))
            if not self._wanted.takes(folder.name, str(folder / "environment/repository")):
                self._seen[folder.name] = ("", "")
                self.account.passed_over += 1
                continue
            try:
                row = read_harbor(folder)
            except ConfigError as error:
                self.account.bad.append(error)
                continue
            yield str(folder), row

    def _is_new(self, place: str, row: TaskRow) -> bool:
        """Whether its id was not met before; the same row again is a copy, another one of that id is bad."""
        plain = to_plain(replace(row, split=None))
        digest = hashlib.sha256(repr(plain).encode(errors="surrogatepass")).hexdigest()
        first, contents = self._seen.get(row.id, ("", ""))
        if not first:
            self._seen[row.id] = place, digest
            return True
        if contents == digest:
            self.account.copies.append(f"{row.id}: {place} is a copy of {first}")
        else:
            way_out = "keep one of them, or choose a split"
            error = ConfigError(f"{place} ({row.id}): id", row.id, f"is the id of another row ({first})", way_out)
            self.account.bad.append(error)
        return False

    def _check_names(self) -> None:
        """All rows were read, so what was asked for and not met is not there."""
        group = self._wanted.group
        errors = [
            ConfigError(f"{group}.ids.{index}", name, "no row has this id", "look it up in the set")
            for index, name in enumerate(self._wanted.ids)
            if name not in self._seen and not any(f"({name})" in error.key for error in self.account.bad)
        ]
        known = ", ".join(sorted(self._repositories)[:20])
        errors += [
            ConfigError(
                f"{self._wanted.group}.repositories.{index}", name, "no row is of this repository", f"known: {known}"
            )
            for index, name in enumerate(self._wanted.repositories)
            if name not in self._repositories
        ]
        if errors:
            raise ConfigErrors(errors)


def _with_readers(path: Path, wanted: Wanted) -> list[tuple[SourceFile, Reader]]:
    """Raises ConfigErrors for all files whose format is not known."""
    opened, errors = [], []
    for file in source_files(path, wanted.split, wanted.group):
        if not file.columns and file.rows in (None, 0):
            errors.append(ConfigError(f"{wanted.group}.path", str(file.path), "holds no row", "name another file"))
            continue
        try:
            opened.append((file, reader_of(str(file.path), file.columns, wanted.format, wanted.group)))
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise ConfigErrors(errors)
    return opened
