"""Files and folders of rows: each row once, each counted once, each that is bad with an error, and copies told."""

import gzip
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from calc_task import write_calc
from hypothesis import given
from hypothesis import strategies as st
from task_rows import LITE, R2E_GYM, ROWS, SWE_BENCH, SWE_GYM, SWE_REBENCH, SWE_REBENCH_2, SWE_SMITH, read_all, source

from engine.core.errors import ConfigError, ConfigErrors
from engine.core.unified import parse
from engine.tasks.rows.record import TaskRow

needs_lite = pytest.mark.skipif(not LITE.exists(), reason="the rows of SWE-bench Lite are not on this machine")


def lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(count: int, of: Mapping[str, Any] = SWE_GYM) -> list[dict[str, Any]]:
    return [{**of, "instance_id": f"owner__calc-{number}"} for number in range(1, count + 1)]


def parquet(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict.fromkeys(key for row in rows for key in row)
    pq.write_table(pa.table({column: [row.get(column) for row in rows] for column in columns}), path)
    return path


def ids(rows: Iterable[TaskRow]) -> list[str]:
    return [row.id for row in rows]


@needs_lite
def test_all_rows_of_swe_bench_lite_are_read() -> None:
    rows, account = read_all(LITE)
    assert (account.read, account.chosen, account.bad, account.copies) == (300, 300, [], [])
    assert account.formats == ["swe_bench"]
    assert len(set(ids(rows))) == 300
    assert sum(len(row.fail_to_pass) for row in rows) == 1045
    assert sum(len(row.pass_to_pass) for row in rows) == 23688
    assert [len(parse(row.reference or "")) for row in rows] == [1] * 300
    assert sum(len(parse(row.test_patch)) for row in rows) == 378
    assert {row.language for row in rows} == {"python"}
    assert len({row.repository for row in rows}) == 12


@needs_lite
def test_lite_is_the_same_set_in_every_kind_of_file(tmp_path: Path) -> None:
    rows = json.loads(LITE.read_text())
    expected, _ = read_all(LITE)
    texts = [
        {**row, "FAIL_TO_PASS": json.dumps(row["FAIL_TO_PASS"]), "PASS_TO_PASS": repr(row["PASS_TO_PASS"])}
        for row in rows
    ]
    assert read_all(lines(tmp_path / "a.jsonl", texts))[0] == expected
    assert read_all(parquet(tmp_path / "b.parquet", rows))[0] == expected
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read_all(packed)[0] == expected


def test_every_format_reads_the_same_from_parquet_and_from_lines(tmp_path: Path) -> None:
    for name, row in ROWS.items():
        from_lines, _ = read_all(lines(tmp_path / f"{name}.jsonl", [row]))
        from_parquet, _ = read_all(parquet(tmp_path / f"{name}.parquet", [row]))
        assert from_lines == from_parquet
        assert len(from_lines) == 1


def test_parquet_that_holds_both_editions_of_swe_rebench(tmp_path: Path) -> None:
    first = {**SWE_REBENCH, "install_config": {**SWE_REBENCH["install_config"], "install": ["make"], "test_cmd": ["t"]}}
    second = {**SWE_REBENCH_2, "instance_id": "owner__calc-2", "created_at": "2022-03-03"}
    rows, _ = read_all(parquet(tmp_path / "x.parquet", [first, second]))
    assert [row.workdir for row in rows] == ["/testbed", "/calc"]
    assert "base_image_name" not in rows[0].recipe, "a column that only other rows fill says nothing of this one"


def test_a_json_file_may_hold_an_array_or_lines(tmp_path: Path) -> None:
    rows = numbered(3)
    array, listed = tmp_path / "a.json", tmp_path / "b.json"
    array.write_text("\ufeff\n " + json.dumps(rows, indent=2))
    lines(listed, rows)
    assert read_all(array)[0] == read_all(listed)[0] != []


def test_a_folder_of_shards_is_one_set_in_the_order_of_names(tmp_path: Path) -> None:
    rows = numbered(5)
    parquet(tmp_path / "data/train-00001-of-00002.parquet", rows[3:])
    parquet(tmp_path / "data/train-00000-of-00002.parquet", rows[:3])
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/old.parquet").write_text("no parquet")
    read, account = read_all(tmp_path)
    assert ids(read) == [row["instance_id"] for row in rows]
    assert account.files == 2
    assert {row.split for row in read} == {"train"}


def test_a_split_is_that_of_the_name_or_of_the_row(tmp_path: Path) -> None:
    rows = numbered(4)
    parquet(tmp_path / "a/train-00000-of-00001.parquet", rows[:1])
    parquet(tmp_path / "a/test-00000-of-00001.parquet", rows[1:2])
    assert ids(read_all(tmp_path / "a", split="test")[0]) == ["owner__calc-2"]
    marked = [{**row, "split": split} for row, split in zip(rows, ["train", "test", "test", "dev"], strict=True)]
    read, account = read_all(lines(tmp_path / "rows.jsonl", marked), split="test")
    assert (ids(read), account.passed_over) == (["owner__calc-2", "owner__calc-3"], 2)
    with pytest.raises(ConfigError, match=r"^job.split='dev': no file of .*/a is of this split; known: test, train$"):
        read_all(tmp_path / "a", split="dev")


def test_tasks_are_chosen_by_id_repository_and_number(tmp_path: Path) -> None:
    rows = numbered(6)
    rows[1]["repo"] = rows[4]["repo"] = "other/lib"
    rows[5]["patch"] = "no diff"
    path = lines(tmp_path / "rows.jsonl", rows)
    assert ids(read_all(path, ids=["owner__calc-3", "owner__calc-1"])[0]) == ["owner__calc-1", "owner__calc-3"]
    read, account = read_all(path, repositories=["other/lib"])
    assert ids(read) == ["owner__calc-2", "owner__calc-5"]
    assert (account.passed_over, account.bad) == (4, []), "a bad row that nobody asked for is no error"
    read, account = read_all(path, limit=2)
    assert (ids(read), account.read, account.limited) == (["owner__calc-1", "owner__calc-2"], 2, True)


def test_names_that_are_not_there_are_told(tmp_path: Path) -> None:
    rows = numbered(3)
    rows[1]["patch"] = "no diff"
    path = lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigErrors) as raised:
        read_all(path, ids=["owner__calc-1", "owner__calc-2", "owner__calc-9"], repositories=["owner/calc", "a/b"])
    assert str(raised.value).splitlines() == [
        "job.ids.2='owner__calc-9': no row has this id; look it up in the set",
        "job.repositories.1='a/b': no row is of this repository; known: owner/calc",
    ], "the bad one is there, and told apart"


def test_smiths_repository_is_chosen_by_its_real_name(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", [SWE_SMITH])
    assert len(read_all(path, repositories=["owner/calc"])[0]) == 1


def test_bad_rows_are_told_with_their_numbers_and_the_others_come(tmp_path: Path) -> None:
    rows = numbered(5)
    rows[1]["patch"] = "no diff"
    del rows[3]["instance_id"]
    path = lines(tmp_path / "rows.jsonl", rows)
    read, account = read_all(path)
    assert ids(read) == ["owner__calc-1", "owner__calc-3", "owner__calc-5"]
    first, second = map(str, account.bad)
    assert first.startswith(f"{path}, row 2 (owner__calc-2): patch='no diff': is no diff that can be read: line 1: ")
    assert second.startswith(f"{path}, row 4: instance_id=None: is missing; ")
    assert account.read == account.chosen + len(account.bad) == 5


def test_blank_lines_keep_the_numbers_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps({**SWE_GYM, "patch": "x"}) + "\n\n")
    _, account = read_all(path)
    assert f"{path}, row 2 " in str(account.bad[0])


def test_copies_are_told_and_another_row_of_the_same_id_is_bad(tmp_path: Path) -> None:
    rows = numbered(3)
    rows[1] = rows[0]
    rows[2] = {**rows[0], "problem_statement": "something else"}
    path = lines(tmp_path / "rows.jsonl", rows)
    read, account = read_all(path)
    assert ids(read) == ["owner__calc-1"]
    assert account.copies == [f"owner__calc-1: {path}, row 2 is a copy of {path}, row 1"]
    problem = f"{path}, row 3 (owner__calc-1): id='owner__calc-1': is the id of another row ({path}, row 1); "
    assert str(account.bad[0]).startswith(problem)


@given(st.lists(st.sampled_from(["good", "bad", "copy", "other", "unwanted"]), max_size=12), st.integers(0, 2**16))
def test_every_row_is_counted_once(tmp_path_factory: pytest.TempPathFactory, kinds: list[str], seed: int) -> None:
    rows: list[dict[str, Any]] = [{**SWE_GYM, "instance_id": "owner__calc-0"}]
    for number, kind in enumerate(kinds, start=1):
        row = {**SWE_GYM, "instance_id": f"owner__calc-{number}"}
        other = {"instance_id": rows[0]["instance_id"], "version": str(number)}
        changes = {"bad": {"patch": "x"}, "copy": rows[0], "other": other, "unwanted": {"repo": "a/b"}}
        rows.append({**row, **changes.get(kind, {})})
    random.Random(seed).shuffle(rows)
    path = lines(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)
    read, account = read_all(path, repositories=["owner/calc"])
    assert len(rows) == account.read
    assert len(rows) == account.passed_over + len(account.bad) + len(account.copies) + account.chosen
    assert len(read) == account.chosen == 1 + kinds.count("good")
    assert len(account.bad) + len(account.copies) == sum(kind in ("bad", "copy", "other") for kind in kinds)


def test_progress_is_told_for_each_row_with_the_total_where_it_is_known(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    for path in (parquet(tmp_path / "a.parquet", numbered(3)), lines(tmp_path / "b.jsonl", numbered(2))):
        made = source(path)
        made._tell = lambda done, total: told.append((done, total))
        list(made.rows())
    assert told == [(1, 3), (2, 3), (3, 3), (1, None), (2, None)]


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", numbered(3))
    with path.open("a") as file:
        file.write("{no json\n")
    rows = source(path).rows()
    assert next(rows).id == "owner__calc-1", "nothing after it was needed"
    with pytest.raises(ConfigError, match=r"rows.jsonl, line 4='\{no json\\n': is not JSON \(Expecting"):
        list(rows)


def test_harbor_directories_are_rows_too(tmp_path: Path) -> None:
    task = write_calc(tmp_path)
    read, account = read_all(tmp_path)
    (row,) = read
    assert (row.format, row.id, row.instruction) == ("harbor", "calc", task.instruction)
    assert row.repository == str(task.repository)
    assert (row.fail_to_pass, row.pass_to_pass) == (task.fail_to_pass, task.pass_to_pass)
    assert [file.path for file in parse(row.reference or "")] == ["calc/__init__.py"]
    assert [file.path for file in parse(row.test_patch)] == ["tests/test_calc.py"]
    assert (account.files, account.formats) == (1, ["harbor"])
    assert read_all(tmp_path / "calc")[0] == read, "the directory itself may be named"
    (tmp_path / "calc/tests/grading.json").write_text("{}")
    _, account = read_all(tmp_path)
    assert "grading.json: test_paths=None: is missing" in str(account.bad[0])
    with pytest.raises(ConfigError, match=r"no folder in it holds a task.toml"):
        source(tmp_path / "calc/tests", format="harbor")


@pytest.mark.parametrize(
    ("name", "contents", "problem"),
    [
        (
            "x.parquet",
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a pointer of Git LFS, not the file; run: git",
        ),
        ("x.parquet", b"PAR1 and no more", r"cannot be read \(.*\); fetch the file again"),
        ("x.jsonl.gz", b"no gzip", r"cannot be read \(Not a gzipped file"),
        ("x.jsonl", b"\xff\xfe", r"cannot be read \('utf-8' codec"),
        ("x.csv", b"a,b\n", "is no file of rows; give one of .parquet, "),
        ("x.jsonl", b"", "holds no row; name another file"),
        ("x.json", b"[]", "holds no row; name another file"),
        ("x.json", b"[1]", "row 1='1': is no row; write a JSON object"),
        ("x.jsonl", b'{"a": 1}\n', r"is of no known format \(columns: a\)"),
    ],
)
def test_a_file_that_holds_no_rows_is_refused(tmp_path: Path, name: str, contents: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ConfigError, match=problem):
        read_all(tmp_path / name)


def test_a_cut_off_archive_is_told_when_it_is_reached(tmp_path: Path) -> None:
    rows = numbered(400)
    for row in rows:
        row["hints_text"] = random.Random(row["instance_id"]).randbytes(400).hex()
    packed = gzip.compress(lines(tmp_path / "a.jsonl", rows).read_bytes())
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match=r"a.jsonl.gz': cannot be read \(Compressed file ended"):
        read_all(tmp_path / "a.jsonl.gz")


def test_a_folder_without_rows_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "data.arrow").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"no file in it is of \.parquet, .*\(only \.arrow\)"):
        read_all(tmp_path)
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        read_all(tmp_path / "none")


def test_all_files_of_unknown_format_are_told_at_once(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [{"a": 1}])
    lines(tmp_path / "b.jsonl", [R2E_GYM])
    lines(tmp_path / "c.jsonl", [{"c": 1}])
    with pytest.raises(ConfigErrors) as raised:
        source(tmp_path)
    assert [error.problem.split(" ")[0] for error in raised.value.errors] == [
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "c.jsonl"),
    ]


def test_a_named_format_goes_before_what_the_columns_say(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", [SWE_BENCH])
    assert read_all(path, format="swe_gym")[0][0].format == "swe_gym"
