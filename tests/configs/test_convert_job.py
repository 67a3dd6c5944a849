"""`job=convert` as a person meets it: the table, the report, the directories, and what is refused."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calc_task import IMAGE, write_calc
from task_rows import LITE, R2E_GYM, SWE_BENCH, SWE_GYM, SWE_REBENCH_2, SWE_SMITH, read_all
from test_command_line import engine

from engine.core.errors import ConfigError, ConfigErrors
from engine.run.jobs.convert import ConvertJob
from engine.tasks.directory import HarborDirectory

LIMITS = {"agent_timeout_s": 60.0, "grade_timeout_s": 30.0, "memory_mb": 512, "cpus": 1.0}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def convert(path: Path, to: Path, **changes: Any) -> int:
    """The job by itself."""
    settings: dict[str, Any] = {
        "path": str(path),
        "format": None,
        "to": str(to),
        "split": None,
        "ids": [],
        "repositories": [],
        "limit": None,
        "bad_rows": "refuse",
        "checkouts": None,
        "directories": None,
        "limits": LIMITS,
    }
    built: Any = SimpleNamespace(
        tasks=SimpleNamespace(images=lambda: (IMAGE,)), observe=SimpleNamespace(progress_interval_s=8)
    )
    return asyncio.run(ConvertJob(**settings | changes).run(built))


@pytest.mark.skipif(not LITE.exists(), reason="the rows of SWE-bench Lite are not on this machine")
def test_all_of_swe_bench_lite(tmp_path: Path) -> None:
    done = engine(tmp_path, "job=convert", f"job.path={LITE}", "job.to=deep/lite.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "    300  rows read from 1 file: swe_bench",
        "      0  passed over by split, ids or repositories",
        "      0  copies of an earlier row",
        "      0  bad",
        "    300  tasks chosen",
        "      0  of them made task directories",
        "    192  not: its tests are not named as pytest names them (django__django-10914, django__django-10924, "
        "django__django-11001, …)",
        "    108  not: no clones are named (checkouts) (astropy__astropy-12907, astropy__astropy-14182, "
        "astropy__astropy-14365, …)",
        "deep/lite.parquet",
    ]
    expected, _ = read_all(LITE)
    read, account = read_all(tmp_path / "deep/lite.parquet")
    assert read == expected
    assert account.formats == ["stored"]
    report = json.loads((tmp_path / "deep/lite.report.json").read_text())
    assert len(report["not_run_here"]) == 300
    needed = report["not_run_here"]["astropy__astropy-12907"]
    assert needed == "it needs astropy/astropy at d16bfe05a744909de4b27f5875fe0d4ed41ce607"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["lite.parquet", "lite.report.json"]


def test_the_table_converts_to_itself(tmp_path: Path) -> None:
    convert(lines(tmp_path / "a.jsonl", SWE_SMITH), tmp_path / "one.parquet")
    convert(tmp_path / "one.parquet", tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_what_a_killed_job_left_goes_and_what_another_writes_stays(tmp_path: Path) -> None:
    old, young = tmp_path / ".t.parquet.draft-00000000", tmp_path / ".t.parquet.draft-11111111"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    convert(lines(tmp_path / "a.jsonl", SWE_GYM), tmp_path / "t.parquet")
    assert (old.exists(), young.exists()) == (False, True)


def test_bad_rows_end_it_and_nothing_is_written(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", SWE_GYM, {**SWE_GYM, "instance_id": "b", "patch": "x"})
    done = engine(tmp_path, "job=convert", f"job.path={path}", "job.to=t.parquet")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if not line.startswith("[")] == [
        f"{path}, row 2 (b): patch='x': is no diff that can be read: line 1: 'x' belongs to no file; mend the diff, or "
        "leave the row out (bad_rows=leave_out)",
        "job.bad_rows='refuse': 1 of 2 rows are bad; mend them, or take the others alone with job.bad_rows=leave_out",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_bad_rows_are_left_out_when_asked_and_told_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [{**SWE_GYM, "instance_id": f"b{number}", "patch": "x"} for number in range(30)]
    path = lines(tmp_path / "a.jsonl", *bad, SWE_GYM, SWE_GYM)
    assert convert(path, tmp_path / "t.parquet", bad_rows="leave_out") == 0
    told = capsys.readouterr()
    assert told.err.count(": is no diff that can be read") == 20
    assert "     30  bad\n      1  tasks chosen\n" in told.out
    assert "      1  copies of an earlier row\n" in told.out
    report = json.loads((tmp_path / "t.report.json").read_text())
    assert (len(report["bad"]), len(report["copies"]), report["chosen"]) == (30, 1, 1)
    with pytest.raises(ConfigErrors) as raised:
        convert(path, tmp_path / "u.parquet")
    assert len(raised.value.errors) == 21
    assert raised.value.errors[-1].problem == "30 of 32 rows are bad, of which the first 20 are told"


def test_each_row_that_cannot_be_run_here_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = lines(tmp_path / "a.jsonl", SWE_REBENCH_2), lines(tmp_path / "b.jsonl", R2E_GYM)
    folder = tmp_path / "rows"
    folder.mkdir()
    for path in rows:
        path.rename(folder / path.name)
    assert convert(folder, tmp_path / "t.parquet") == 0
    assert "  rows read from 2 files: swe_rebench, r2e_gym\n" in capsys.readouterr().out
    told = json.loads((tmp_path / "t.report.json").read_text())["not_run_here"]
    assert told["owner__calc-1"] == "it is written in c; the verifier runs pytest"
    image = R2E_GYM["docker_image"]
    assert told["calc-d16bfe05a744"] == f"2 outcomes are told; base and tests are in the image {image} alone"


def test_harbor_directories_go_into_the_table(tmp_path: Path) -> None:
    write_calc(tmp_path / "tasks")
    assert convert(tmp_path / "tasks", tmp_path / "t.parquet") == 0
    (row,) = read_all(tmp_path / "t.parquet")[0]
    assert (row.format, row.id) == ("harbor", "calc")


def a_clone(folder: Path) -> str:
    for name, text in {"calc/core.py": "def add(a, b):\n    return a - b\n", "calc/__init__.py": ""}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q", "."], ["add", "-A"], [*identity, "commit", "-qm", "base"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_directories_are_made_of_what_is_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit = a_clone(tmp_path / "clones/owner__calc")
    rows = [
        {**SWE_BENCH, "base_commit": commit},
        {**SWE_BENCH, "instance_id": "elsewhere", "repo": "a/b"},
        {**SWE_BENCH, "instance_id": "unfit", "base_commit": commit, "patch": SWE_SMITH["patch"]},
    ]
    path = lines(tmp_path / "rows.jsonl", *rows)
    folder = {"checkouts": str(tmp_path / "clones"), "directories": str(tmp_path / "made")}
    assert convert(path, tmp_path / "t.parquet", **folder) == 0
    out = capsys.readouterr().out
    assert "      1  of them made task directories\n" in out
    image = {"name": "calc", "suite": "bookworm", "packages": ["python3"], "pip": []}
    (task,) = HarborDirectory(path=str(tmp_path / "made"), validation=[], image=image).load()
    assert (task.id, task.grade_timeout_s) == ("owner__calc-1", 30.0)
    told = json.loads((tmp_path / "t.report.json").read_text())
    assert told["task_directories"] == ["owner__calc-1"]
    assert "holds no clone of a/b; clone it there as a__b" in told["not_run_here"]["elsewhere"]
    assert told["not_run_here"]["unfit"].startswith("reference: calc/core.py: does not hold the lines of the hunk at")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        *("clones", "made", "rows.jsonl", "t.parquet", "t.report.json")
    ]


def test_what_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", SWE_BENCH)
    (tmp_path / "there.parquet").touch()
    for changes, problem in (
        ({"to": str(tmp_path / "there.parquet")}, r"^job.to='.*': is there already; name another, or remove this one$"),
        ({"to": "x.jsonl"}, r"^job.to='x.jsonl': is no name of a parquet file; let it end in .parquet$"),
        ({"checkouts": str(tmp_path)}, r"^job.directories=None: is null, and job.checkouts is not; set both, or ne"),
        ({"directories": "d"}, r"^job.checkouts=None: is null, and job.directories is not"),
        ({"checkouts": "/none", "directories": "d"}, r"^job.checkouts='/none': is no folder"),
        ({"path": str(tmp_path / "none")}, r"^job.path='.*none': there is no such file or folder"),
        ({"format": "r2e_gym"}, r"^job.format='r2e_gym': .*a.jsonl has no column repo_name, commit_hash, docker_im"),
        ({"ids": ["x"]}, r"^job.ids.0='x': no row has this id"),
        ({"split": "test"}, r"^job.path='.*a.jsonl': gave no task: 1 rows read, 1 passed over, 0 bad; choose other"),
    ):
        settings = {"path": path, "to": tmp_path / "t.parquet"} | changes
        with pytest.raises(ConfigError, match=problem):
            convert(Path(settings.pop("path")), Path(settings.pop("to")), **settings)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.jsonl", "there.parquet"]
