"""Tables that are no part of a run: whole or not there, with the record's columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from task_rows import ROWS, raw, read_all

from engine.store.schema import record_schema
from engine.store.tables import write_table
from engine.tasks.rows.formats import READERS
from engine.tasks.rows.stored import COLUMNS, to_plain

READ = {reader.name: reader.read for reader in READERS}


def test_task_rows_come_back_equal(tmp_path: Path) -> None:
    rows = [READ[name.removesuffix("_2")](raw({**row, "instance_id": name})) for name, row in ROWS.items()]
    path = tmp_path / "deep/tasks.parquet"
    assert write_table(path, "task", map(to_plain, rows)) == len(rows)
    back, account = read_all(path)
    assert back == rows
    assert account.formats == ["stored"]
    with pq.ParquetFile(path) as file:
        assert file.schema_arrow.names == list(COLUMNS)
        assert file.schema_arrow.equals(record_schema("task"), check_metadata=False)


def test_rows_are_written_in_groups(tmp_path: Path) -> None:
    row = to_plain(READ["swe_bench"](raw(ROWS["swe_bench"])))
    assert write_table(tmp_path / "t.parquet", "task", ({**row, "id": str(number)} for number in range(600))) == 600
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        assert [file.metadata.row_group(place).num_rows for place in range(file.num_row_groups)] == [256, 256, 88]
        assert file.read(columns=["id"]).to_pydict()["id"] == [str(number) for number in range(600)]


def test_a_table_whose_rows_end_in_an_error_is_not_there(tmp_path: Path) -> None:
    row = to_plain(READ["swe_bench"](raw(ROWS["swe_bench"])))

    def rows() -> Iterator[dict[str, Any]]:
        yield from [row] * 300
        raise ValueError("the last one is bad")

    with pytest.raises(ValueError, match="the last one is bad"):
        write_table(tmp_path / "t.parquet", "task", rows())
    assert list(tmp_path.iterdir()) == []


def test_no_row_makes_a_table_without_rows(tmp_path: Path) -> None:
    assert write_table(tmp_path / "t.parquet", "task", []) == 0
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 0
