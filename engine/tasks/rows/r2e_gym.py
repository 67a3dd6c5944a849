"""R2E-Gym: commits of repositories; the image holds base and tests, and `expected_output_json` what must come out.

There is no instance id, no list of tests to turn and no diff. The id is made of repository and commit; the outcomes are
kept as `expected`; the base is the commit's parent. The reference is put together from `parsed_commit_content`, where a
row has it: the commit's changes to the files that `relevant_files` names, which leaves its tests out.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.core.unified import FileDiff
from engine.tasks.rows.record import TaskRow
from engine.tasks.rows.swe_bench import WORKDIR, commit
from engine.tasks.rows.values import Raw

_SHORT = 12
"""Digits of a commit that name a task."""
_ISSUE = re.compile(r"\s*\[ISSUE\]\s*(.*?)\s*\[/ISSUE\]\s*", re.DOTALL)
_MARKS = {"context": " ", "added": "+", "deleted": "-"}
_COLOUR = re.compile(r"(?:\x1b|\\u001b)\[\d+m")


def read_r2e_gym(raw: Raw) -> TaskRow:
    """A row of R2E-Gym (V1, Subset, Lite)."""
    identity, name = head_r2e_gym(raw)
    raw.named(identity)
    fixed = commit(raw, "commit_hash")
    issue = raw.text("problem_statement")
    marked = _ISSUE.fullmatch(issue)
    return TaskRow(
        format="r2e_gym",
        id=identity,
        instruction=marked[1] if marked else issue,
        hints="",
        repository=name,
        base_commit=f"{fixed}^",
        setup_patch="",
        reference=_reference(raw),
        test_patch="",
        fail_to_pass=(),
        pass_to_pass=(),
        expected=_expected(raw),
        image=raw.text("docker_image"),
        workdir=WORKDIR,
        recipe="",
        install=(),
        test_command=("bash run_tests.sh",),
        log_parser=None,
        environment_setup_commit=None,
        version=None,
        created_at=raw.time("created_at"),
        language="python",
        license=None,
        split=raw.optional("split"),
    )


def head_r2e_gym(raw: Raw) -> tuple[str, str]:
    """(id, repository)."""
    name = raw.text("repo_name")
    return f"{name.replace('/', '__')}-{raw.text('commit_hash')[:_SHORT]}", name


def _expected(raw: Raw) -> Mapping[str, str]:
    """Test name → outcome, without the colours of the terminal that some names were read from."""
    told = raw.mapping("expected_output_json")
    if not told:
        problem = "names no test, so nothing tells a right patch from a wrong one"
        raise raw.wrong("expected_output_json", None, problem, "leave the row out (bad_rows=leave_out)")
    for test, outcome in told.items():
        if not isinstance(outcome, str):
            raise raw.wrong(f"expected_output_json.{test}", outcome, "is no outcome", 'write "PASSED" or "FAILED"')
    column = "expected_output_json"
    return {raw.utf8(column, _COLOUR.sub("", test)): raw.utf8(column, told[test]) for test in told}


def _reference(raw: Raw) -> str | None:
    """The commit's own changes as a diff; None where the row does not hold them."""
    if not raw.has("parsed_commit_content") or not raw.has("relevant_files"):
        return None
    content, wanted = raw.mapping("parsed_commit_content"), raw.texts("relevant_files")
    try:
        files = {_path_of(file): file for file in content["file_diffs"]}
        text = "".join(_file(path, files[path]) for path in wanted)
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"does not hold the changes of relevant_files ({type(error).__name__}: {error})"
        way_out = "remove the column, and the task has no reference, or leave the row out"
        raise raw.wrong("parsed_commit_content", raw.value("parsed_commit_content"), problem, way_out) from error
    _checked(raw.diff("parsed_commit_content", raw.utf8("parsed_commit_content", text)), raw)
    return text


def _checked(files: Sequence[FileDiff], raw: Raw) -> None:
    for file in files:
        if not file.plain:
            way_out = "remove the column, and the task has no reference, or leave the row out"
            raise raw.wrong("parsed_commit_content", file.path, "is a binary file or a link", way_out)


def _path_of(file: Mapping[str, Any]) -> str:
    return str(file["header"]["file"]["path"])


def _file(path: str, file: Mapping[str, Any]) -> str:
    """One file's part of the diff, by the two names that the set keeps beside the hunks."""
    if file.get("is_binary_file"):
        return f"Binary file {path} differs\n"
    names = [(file.get(key) or {}).get("path", path) for key in ("minus_file", "plus_file")]
    old, new = (
        "/dev/null" if name == "/dev/null" else f"{side}/{path}" for side, name in zip("ab", names, strict=True)
    )
    return f"--- {old}\n+++ {new}\n" + "".join(_hunk(hunk) for hunk in file["hunks"] or ())


def _hunk(hunk: Mapping[str, Any]) -> str:
    said, lines = hunk["descriptor"], hunk["line_group"]["all_lines"]
    old, new = ((said[key]["start"], said[key].get("length")) for key in ("old_range", "new_range"))
    ranges = [f"{start}" if length is None else f"{start},{length}" for start, length in (old, new)]
    told = [
        "\\ No newline at end of file" if line["type"] == "note" else _MARKS[line["type"]] + line["content"]
        for line in lines
    ]
    section = said.get("section") or ""
    head = f"@@ -{ranges[0]} +{ranges[1]} @@{' ' + section.strip() if section.strip() else ''}"
    return "".join(line + "\n" for line in (head, *told))
