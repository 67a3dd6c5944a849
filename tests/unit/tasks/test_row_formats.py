"""One reader a format: what each column means, in each form that writers gave it, and what each error names."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from task_rows import BUG, COMMIT, FAILING, FIX, R2E_GYM, ROWS, SWE_BENCH, SWE_REBENCH, SWE_SMITH, TESTS, raw

from engine.config.schemas import ROOT
from engine.core.errors import ConfigError
from engine.core.unified import parse, reverse
from engine.tasks.rows.formats import READERS, reader_of
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.stored import COLUMNS, read_stored, to_plain

READ = {reader.name: reader.read for reader in READERS}


def read(name: str, **changes: Any) -> TaskRow:
    return READ[name.removesuffix("_2")](raw(ROWS[name], **changes))


@pytest.mark.parametrize("name", list(ROWS))
def test_each_format_is_recognised_by_its_columns(name: str) -> None:
    assert reader_of("f", list(ROWS[name]), None, "job").name == name.removesuffix("_2")


@pytest.mark.parametrize("name", ["swe_bench", "swe_gym", "swe_rebench"])
def test_an_image_of_its_own_makes_no_row_one_of_swe_smith(name: str) -> None:
    assert reader_of("f", [*ROWS[name], "image_name"], None, "job").name == name, "its patch would be turned round"


@pytest.mark.parametrize("name", list(ROWS))
def test_what_all_formats_give(name: str) -> None:
    row = read(name)
    assert row.format == name.removesuffix("_2")
    assert "add subtracts" in row.instruction
    assert row.repository == ("calc" if name == "r2e_gym" else "owner/calc")
    assert row.reference is not None
    (file,) = parse(row.reference)
    assert file.hunks == parse(FIX)[0].hunks, "whatever a format calls it, the reference mends the bug"
    assert row.language == ("c" if name == "swe_rebench_2" else "python")


@pytest.mark.parametrize("name", list(ROWS))
def test_a_stored_row_is_read_back_equal(name: str) -> None:
    row = read(name)
    plain = to_plain(row)
    assert list(plain) == list(COLUMNS)
    assert read_stored(raw(plain)) == row
    assert read_stored(raw(json.loads(json.dumps(plain)))) == row, "as JSON too"
    assert read_stored(raw(plain, expected=dict(row.expected))) == row, "and with its map as an object"


def test_swe_bench() -> None:
    row = read("swe_bench")
    assert (row.id, row.base_commit, row.version) == ("owner__calc-1", COMMIT, "4.3")
    assert (row.reference, row.test_patch, row.setup_patch) == (FIX, TESTS, "")
    assert (row.fail_to_pass, row.pass_to_pass) == ((FAILING,), ())
    assert (row.created_at, row.environment_setup_commit) == (
        "2022-03-03T15:14:54Z",
        SWE_BENCH["environment_setup_commit"],
    )
    assert (row.image, row.workdir) == ("docker.io/swebench/sweb.eval.x86_64.owner_1776_calc-1:latest", "/testbed")
    assert read("swe_bench", image_name="mine:1").image == "mine:1", "the row's own word goes first"


def test_swe_gym() -> None:
    row = read("swe_gym")
    assert row.image == "docker.io/xingyaoww/sweb.eval.x86_64.owner_s_calc-1:latest"
    assert row.pass_to_pass == ("tests/test_old.py::test_mul[a b]",)
    assert (row.environment_setup_commit, row.created_at) == (None, "2022-03-03T15:14:54Z")


def test_swe_smiths_patch_makes_the_bug() -> None:
    row = read("swe_smith")
    assert row.reference is not None
    assert (row.setup_patch, row.test_patch) == (BUG, "")
    assert reverse(parse(row.reference)) == parse(BUG)
    assert "+    return a + b" in row.reference.splitlines(), "the reference mends"
    assert (row.repository, row.base_commit) == ("owner/calc", "1fd52536")
    assert row.created_at == "2025-01-05T06:07:08Z"
    assert row.image == SWE_SMITH["image_name"]


def test_swe_smith_without_a_mirrors_name_has_its_bug_in_the_base() -> None:
    row = read("swe_smith", repo="owner/calc", base_commit=COMMIT)
    assert (row.repository, row.base_commit, row.setup_patch) == ("owner/calc", COMMIT, "")


def test_a_row_of_swe_smith_is_never_read_as_swe_benchs() -> None:
    with pytest.raises(ConfigError, match=r"repo='swesmith/owner__calc.1fd52536': is a row of SWE-smith, whose patch"):
        read("swe_bench", repo="swesmith/owner__calc.1fd52536")
    columns = [*SWE_SMITH, "base_commit"]
    assert reader_of("f", columns, None, "job").name == "swe_smith"


def test_swe_rebench_keeps_the_recipe_and_its_commands() -> None:
    row = read("swe_rebench")
    assert row.install == ("apt-get update", "pip install -e .[dev]")
    assert (row.test_command, row.log_parser) == (("pytest --no-header -rA",), "parse_log_pytest")
    assert (row.image, row.workdir) == ("swerebench/sweb.eval.x86_64.owner_1776_calc-1", "/testbed")
    assert row.license == "MIT License"
    recipe = json.loads(row.recipe)
    assert recipe["requirements"] == "attrs==23.1\n"
    assert recipe["install_config"]["python"] == "3.9"
    assert "env_vars" not in recipe["install_config"], "parquet has nulls where JSON lines have nothing"


def test_swe_rebench_of_the_second_edition() -> None:
    row = read("swe_rebench_2")
    assert row.workdir == "/calc"
    assert (row.install, row.test_command) == (("./configure", "make"), ("make check", "make report"))
    assert (row.created_at, row.language, row.license) == ("2022-03-03T15:14:54Z", "c", "BSD-3-Clause")
    assert json.loads(row.recipe)["install_config"]["docker_specs"] == {"gcc_version": "13"}
    assert read("swe_rebench_2", image_name=..., image_url="u:1").image == "u:1"


def test_swe_rebench_names_what_its_recipe_lacks() -> None:
    config = {**SWE_REBENCH["install_config"], "test_cmd": None}
    with pytest.raises(ConfigError, match=r"row 3 \(owner__calc-1\): install_config.test_cmd=None: is missing"):
        read("swe_rebench", install_config=config)
    as_text = json.dumps(SWE_REBENCH["install_config"])
    assert read("swe_rebench", install_config=as_text) == read("swe_rebench")


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("make", ("make",)),
        ('["a b", "c"]', ("a b", "c")),
        ("[ -d x ] && make", ("[ -d x ] && make",)),
        ("[]", ()),
        ("", ()),
        (None, ()),
        (["a", "b"], ("a", "b")),
    ],
)
def test_commands_are_one_or_a_list(told: Any, meant: tuple[str, ...]) -> None:
    assert (
        read("swe_rebench_2", install_config={"base_image_name": "b", "test_cmd": "t", "install": told}).install
        == meant
    )


@pytest.mark.parametrize(("word", "meant"), [("Python", "python"), (" C++", "cpp"), ("golang", "go"), ("", "python")])
def test_a_rows_own_word_for_its_language_goes_first(word: str, meant: str) -> None:
    assert read("swe_rebench_2", language=word).language == meant


def test_r2e_gym() -> None:
    row = read("r2e_gym")
    assert (row.id, row.base_commit) == (f"calc-{COMMIT[:12]}", f"{COMMIT}^")
    assert row.instruction == "**Title:** add subtracts"
    assert row.expected == {"TestAdd.test_add": "PASSED", "TestAdd.test_skip": "SKIPPED"}
    assert (row.fail_to_pass, row.pass_to_pass, row.test_patch) == ((), (), "")
    assert row.image == f"namanjain12/calc_final:{COMMIT}"
    assert row.test_command == ("bash run_tests.sh",)


def test_r2e_gym_without_the_commits_contents_has_no_reference() -> None:
    assert read("r2e_gym", parsed_commit_content=...).reference is None
    assert read("r2e_gym", relevant_files=[]).reference is None
    as_text = json.dumps(R2E_GYM["parsed_commit_content"])
    assert read("r2e_gym", parsed_commit_content=as_text) == read("r2e_gym")


def test_r2e_gyms_new_files_and_missing_line_feeds() -> None:
    file = {
        "header": {"file": {"path": "new.py"}},
        "minus_file": {"path": "/dev/null"},
        "plus_file": {"path": "b/new.py"},
        "hunks": [
            {
                "descriptor": {"old_range": {"start": 0, "length": 0}, "new_range": {"start": 1, "length": None}},
                "line_group": {
                    "all_lines": [
                        {"content": "x", "type": "added"},
                        {"content": "No newline at end of file", "type": "note"},
                    ]
                },
            }
        ],
    }
    row = read("r2e_gym", relevant_files=["new.py"], parsed_commit_content={"file_diffs": [file]})
    assert row.reference is not None
    (made,) = parse(row.reference)
    assert (made.old, made.new, made.hunks[0].lines) == (None, "new.py", (("+", "x"),))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"relevant_files": ["other.py"]}, r"parsed_commit_content=.*does not hold the changes .*KeyError: 'other.py'"),
        ({"parsed_commit_content": "{}"}, r"does not hold the changes of relevant_files \(KeyError: 'file_diffs'\)"),
        ({"parsed_commit_content": "no"}, r"parsed_commit_content='no': is no object"),
        ({"expected_output_json": "{}"}, r"expected_output_json=None: names no test"),
        ({"expected_output_json": '{"a": 1}'}, r"expected_output_json.a=1: is no outcome"),
        ({"commit_hash": "main"}, r"commit_hash='main': is no commit"),
    ],
)
def test_r2e_gym_refuses(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^set.jsonl, row 3 \(calc-.*{problem}"):
        read("r2e_gym", **changes)


@pytest.mark.parametrize(
    "tests",
    [
        [FAILING, "t.py::b[x y]"],
        (FAILING, "t.py::b[x y]"),
        json.dumps([FAILING, "t.py::b[x y]"]),
        repr([FAILING, "t.py::b[x y]"]),
        np.array([FAILING, "t.py::b[x y]"], dtype=object),
        [FAILING, "t.py::b[x y]", FAILING],
    ],
    ids=["list", "tuple", "json", "repr", "numpy", "twice"],
)
def test_tests_are_one_list_in_whatever_form(tests: Any) -> None:
    assert read("swe_bench", FAIL_TO_PASS=tests).fail_to_pass == (FAILING, "t.py::b[x y]")


@pytest.mark.parametrize("nothing", [None, "", "[]", [], float("nan"), np.array([], dtype=object)])
def test_no_test_that_must_still_pass_is_an_empty_list(nothing: Any) -> None:
    assert read("swe_bench", PASS_TO_PASS=nothing).pass_to_pass == ()
    with pytest.raises(ConfigError, match=r"FAIL_TO_PASS=\[\]: names no test, so nothing tells a right patch"):
        read("swe_bench", FAIL_TO_PASS=nothing)


def test_a_test_that_both_lists_name_must_pass_once() -> None:
    assert read("swe_bench", PASS_TO_PASS=[FAILING, "a.py::b"]).pass_to_pass == ("a.py::b",)


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("2022-03-03 15:14:54", "2022-03-03T15:14:54Z"),
        ("2022-03-03T17:14:54+02:00", "2022-03-03T15:14:54Z"),
        ("2022-03-03T15:14:54.123456", "2022-03-03T15:14:54Z"),
        (1646320494, "2022-03-03T15:14:54Z"),
        (1646320494000, "2022-03-03T15:14:54Z"),
        ("1646320494000", "2022-03-03T15:14:54Z"),
        (np.datetime64("2022-03-03T15:14:54", "ms"), "2022-03-03T15:14:54Z"),
        (np.datetime64("2022-03-03T15:14:54", "ns"), "2022-03-03T15:14:54Z"),
        (None, None),
        ("", None),
        (float("nan"), None),
    ],
)
def test_times_are_utc_in_one_form(told: Any, meant: str | None) -> None:
    assert read("swe_bench", created_at=told).created_at == meant


@pytest.mark.parametrize(("told", "meant"), [(4.3, "4.3"), (None, None), ("", None), (float("nan"), None), (7, "7")])
def test_a_version_may_be_a_number_or_nothing(told: Any, meant: str | None) -> None:
    assert read("swe_bench", version=told).version == meant


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"instance_id": ...}, r"^set.jsonl, row 3: instance_id=None: is missing; add it, or leave the row out"),
        ({"instance_id": "a b/../c"}, r"^set.jsonl, row 3: id='a b/../c': is no task name; use letters"),
        ({"problem_statement": " \n"}, r"row 3 \(owner__calc-1\): problem_statement=' \\n': is empty; add it"),
        ({"problem_statement": ["x"]}, r"problem_statement=\['x'\]: is no text but a list"),
        ({"repo": "calc"}, r"repo='calc': names no repository; write owner/name"),
        ({"base_commit": "v1.0"}, r"base_commit='v1.0': is no commit"),
        ({"patch": "--- a/x\n"}, r"patch='--- a/x\\n': is no diff that can be read: line 1: no line with"),
        (
            {"test_patch": TESTS.replace("+    assert add(2, 3) == 5\n", "")},
            r"test_patch='diff --git .{60,75}…': is no diff that can be read: line 9: the d",
        ),
        ({"patch": FIX.replace("calc/core", "../core")}, r"line 1: patch path '../core.py' leaves the repository"),
        ({"FAIL_TO_PASS": "tests/a.py::b"}, r"FAIL_TO_PASS='tests/a.py::b': is no list; write a JSON list"),
        ({"FAIL_TO_PASS": ["a", 1]}, r"FAIL_TO_PASS=\['a', 1\]: holds 1, which is no text"),
        ({"FAIL_TO_PASS": {"a": 1}}, r"FAIL_TO_PASS=\{'a': 1\}: is no list"),
        ({"PASS_TO_PASS": ...}, r"PASS_TO_PASS=None: is missing; add the list of test ids"),
        ({"created_at": "yesterday"}, r"created_at='yesterday': is no time; write 2022-03-03T15:14:54Z"),
        ({"created_at": True}, r"created_at=True: is no time"),
        (
            {"problem_statement": "a \ud83d"},
            r"problem_statement='a \\ud83d': holds half a character \(at 2\); remove it",
        ),
        ({"PASS_TO_PASS": ["a.py::\udc00"]}, r"PASS_TO_PASS='a.py::\\udc00': holds half a character"),
    ],
)
def test_a_bad_column_is_named_with_file_row_id_value_and_a_way_out(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        read("swe_bench", **changes)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"patch": "Binary file x.png differs\n"},
            "patch=.*has no reverse, so the task has no reference: x.png: a bin",
        ),
        ({"problem_statement": ""}, "problem_statement='': is empty"),
        ({"repo": "owner/calc"}, "repo='owner/calc': names no commit, and there is no base_commit"),
    ],
)
def test_swe_smith_refuses(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read("swe_smith", **changes)


def test_columns_of_no_format_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^job.format=None: f is of no known format \(columns: a, patch\); for swe_"):
        reader_of("f", ["patch", "a"], None, "job")
    columns = [column for column in SWE_BENCH if column != "base_commit"]
    with pytest.raises(ConfigError, match=r"for swe_bench it lacks base_commit; "):
        reader_of("f", columns, None, "job")
    with pytest.raises(ConfigError, match=r"^job.format='swe_smith': f has no column image_name \(it has FAIL_TO"):
        reader_of("f", list(SWE_BENCH), "swe_smith", "job")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_stored_row_of_another_layout_is_refused(column: str) -> None:
    plain = to_plain(read("swe_bench"))
    with pytest.raises(ConfigError, match=column):
        read_stored(raw(plain, **{column: {"odd": ["x"]}}))


def test_the_stored_form_has_a_column_for_each_field() -> None:
    schema = json.loads((ROOT / "schemas/records/task.json").read_text())
    assert list(schema["properties"]) == [field.name for field in dataclasses.fields(TaskRow)] == schema["required"]
