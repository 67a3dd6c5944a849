"""Files of rows: parquet, JSON lines and JSON, compressed or not, one or a folder of them; read piece by piece.

Invariant: the files of a folder come in the order of their names, and every row of each comes once, with its number.
Refuses a pointer of Git LFS, a folder whose files are of two kinds, and what is no row. A JSON array alone is held in
memory whole.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.errors import ConfigError

_KINDS = (".parquet", ".jsonl", ".jsonl.gz", ".ndjson", ".json", ".json.gz")
_POINTER = b"version https://git-lfs"
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}")
"""How Hugging Face names the parts of a split."""
_BATCH = 256
"""Rows that are held at once: patches are long."""
_DAMAGE = (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of rows."""

    path: Path
    kind: str
    rows: int | None
    """How many it holds; None where only reading it tells."""
    columns: tuple[str, ...]
    """Of its first row; in parquet, of all."""
    split: str | None
    """What its name says."""
    group: str
    """Of the configuration, whose keys an error names."""

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number from 1, row) of all rows. Raises ConfigError."""
        try:
            yield from _parquet_rows(self.path) if self.kind == ".parquet" else _json_rows(self.path)
        except _DAMAGE as error:
            raise _unreadable(self.path, self.group, error) from error


def source_files(path: Path, split: str | None, group: str) -> tuple[SourceFile, ...]:
    """The file, or the files of a folder, that belong to a split (None: all). Raises ConfigError that names `path` or
    `split` of this group of the configuration."""
    if not path.exists():
        raise ConfigError(
            f"{group}.path", str(path), "there is no such file or folder", "name a file of rows, or a folder"
        )
    found = _below(path, group) if path.is_dir() else [path]
    chosen = [file for file in found if split is None or split_of(file) in (split, None)]
    if not chosen:
        known = sorted({said for file in found if (said := split_of(file))})
        raise ConfigError(f"{group}.split", split, f"no file of {path} is of this split", f"known: {', '.join(known)}")
    return tuple(_opened(file, group) for file in chosen)


def split_of(path: Path) -> str | None:
    """What a name says of its split: `train-00000-of-00004.parquet`, `test.jsonl`."""
    shard = _SHARD.match(path.name)
    stem = shard[1] if shard else path.name.partition(".")[0]
    return stem if shard or stem in ("train", "test", "dev", "validation") else None


def _kind(path: Path) -> str | None:
    return next((kind for kind in sorted(_KINDS, key=len, reverse=True) if path.name.lower().endswith(kind)), None)


def _below(folder: Path, group: str) -> list[Path]:
    """The files of rows below a folder; a data set's own notes in JSON do not count where it has files of rows."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and _visible(file.relative_to(folder)))
    for kinds in ((".parquet",), (".jsonl", ".jsonl.gz", ".ndjson"), (".json", ".json.gz")):
        found = [file for file in files if _kind(file) in kinds]
        if found:
            return found
    others = sorted({file.suffix for file in files if file.suffix})
    problem = f"no file in it is of {', '.join(_KINDS)}" + (f" (only {', '.join(others[:8])})" if others else "")
    raise ConfigError(f"{group}.path", str(folder), problem, "name the folder that holds the rows")


def _visible(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)


def _opened(path: Path, group: str) -> SourceFile:
    kind = _kind(path)
    if kind is None:
        raise ConfigError(f"{group}.path", str(path), "is no file of rows", f"give one of {', '.join(_KINDS)}")
    try:
        with path.open("rb") as stream:
            if stream.read(len(_POINTER)) == _POINTER:
                problem = "is a pointer of Git LFS, not the file"
                raise ConfigError(f"{group}.path", str(path), problem, "run: git lfs pull")
        if kind == ".parquet":
            with pq.ParquetFile(path) as file:
                rows, columns = file.metadata.num_rows, tuple(file.schema_arrow.names)
        else:
            rows, columns = None, tuple(next((row for _, row in _json_rows(path)), {}))
    except _DAMAGE as error:
        raise _unreadable(path, group, error) from error
    return SourceFile(path=path, kind=kind, rows=rows, columns=columns, split=split_of(path), group=group)


def _unreadable(path: Path, group: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:160]
    way_out = "fetch the file again, or name another"
    return ConfigError(f"{group}.path", str(path), f"cannot be read ({reason})", way_out)


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of an array, or of lines: many files called `.json` hold lines."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", newline="\n") as stream:
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        stream.seek(0)
        if first == "[":
            values = _value(path, 1, stream.read())
            for number, value in enumerate(values, start=1):
                yield number, _row(path, number, value)
            return
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, _row(path, number, _value(path, number, line))


def _value(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        way_out = "write one JSON array of rows, or one row a line"
        raise ConfigError(f"{path}, line {number}", text[:80], f"is not JSON ({error})", way_out) from error


def _row(path: Path, number: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}, row {number}", str(value)[:80], "is no row", "write a JSON object for each row")
    return value
