"""Tables that are no part of a run: one parquet file of rows of one stored record, written piece by piece.

Invariant: the file appears when all rows are in it, or not at all, and holds the columns of the record alone, in order.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.whole import writing_whole
from engine.store.schema import record_schema

_GROUP = 256
"""Rows that are held at once, and read at once later."""


def write_table(path: Path, record: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows of `schemas/records/<record>.json`; returns how many. Raises what `rows` raises, and RunError."""
    schema, count, rest = record_schema(record), 0, iter(rows)
    with (
        writing_whole(path) as stream,
        pq.ParquetWriter(stream, schema, compression="zstd", use_dictionary=False, write_statistics=False) as writer,
    ):
        while group := list(islice(rest, _GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count
