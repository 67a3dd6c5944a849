"""The rules of a harness by configuration alone, by their exact message: all before an adapter is made."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.checks import check_run
from engine.config.harness_checks import COMMAND, RULES
from engine.config.schemas import ROOT, TREE
from engine.core.errors import ConfigErrors

KNOWN = "{runtime}, {state}, {workdir}, {task}, {base_url}, {model}, {max_turns}, {machine}"
STAYS = "is no placeholder, and would stay as it is"
REACH = (
    "the trial's key would be in reach of every command of the agent; "
    "give {api_key} in `environment`, which is closed to the agent's commands"
)
OWN = sorted((ROOT / "tests/fixtures/own_configs/harness").glob("*.yaml"))


CASES: list[tuple[dict[str, Any], str]] = [
    ({"argv": ["x", "{taks}"]}, f"argv[1]='{{taks}}': {{taks}} {STAYS}; write {{task}} (known here: {KNOWN})"),
    (
        {"argv": ["--url={base-url}"]},
        f"argv[0]='--url={{base-url}}': {{base-url}} {STAYS}; write {{base_url}} (known here: {KNOWN})",
    ),
    ({"argv": ["{baseUrl}"]}, f"argv[0]='{{baseUrl}}': {{baseUrl}} {STAYS}; write {{base_url}} (known"),
    ({"argv": ["{ task }"]}, f"argv[0]='{{ task }}': {{ task }} {STAYS}; write {{task}} (known"),
    ({"argv": ["{MODEL}"]}, f"argv[0]='{{MODEL}}': {{MODEL}} {STAYS}; write {{model}} (known"),
    ({"argv": ["{apikey}"]}, f"argv[0]='{{apikey}}': {{apikey}} {STAYS}; give {{api_key}} in `environment`"),
    ({"search": ["{runtme}/x"]}, f"search[0]='{{runtme}}/x': {{runtme}} {STAYS}; write {{runtime}} (known"),
    ({"files": {"{stat}/x": ""}}, f"files='{{stat}}/x': {{stat}} {STAYS}; write {{state}} (known"),
    (
        {"environment": {"A": "{modle}"}},
        f"environment.A='{{modle}}': {{modle}} {STAYS}; write {{model}} (known here: {KNOWN}, {{api_key}})",
    ),
    (
        {"environment": {"A_KEY": "{apikey}"}},
        f"environment.A_KEY='(hidden)': {{apikey}} {STAYS}; write {{api_key}} (known here: {KNOWN}, {{api_key}})",
    ),
    (
        {"packages": ["a@{vesion}"]},
        f"packages[0]='a@{{vesion}}': {{vesion}} {STAYS}; write {{version}} (known here: {{version}}, {{machine}})",
    ),
    (
        {"demonstration": [{"text": "", "name": "x", "arguments": {"a": ["{pth}"]}}]},
        f"demonstration[0].arguments.a[0]='{{pth}}': {{pth}} {STAYS}; write {{path}} "
        "(known here: {workdir}, {path}, {buggy}, {repair})",
    ),
    ({"argv": ["x", "--key={api_key}"]}, f"argv[1]='--key={{api_key}}': {REACH}"),
    ({"files": {"/run/lego/c": "{api_key}"}}, f"files='{{api_key}}': {REACH}"),
    ({"files": {"/run/lego/{api_key}": ""}}, f"files='/run/lego/{{api_key}}': {REACH}"),
    ({"search": ["/x/{api_key}"]}, f"search[0]='/x/{{api_key}}': {REACH}"),
    ({"files": {"c.py": ""}}, "files='c.py': is no absolute path to a file; give a path below /run/lego"),
    ({"files": {"{state}/../../x": ""}}, "files='{state}/../../x': is no absolute path to a file; "),
    ({"files": {"/run/lego/instruction": ""}}, "files='/run/lego/instruction': is a file of the engine's own; "),
    ({"files": {"{runtime}/x": ""}}, "files='{runtime}/x': lies in the runtime, which is mounted read-only; "),
    (
        {"search": ["tools"]},
        "search[0]='tools': is no absolute path to a folder; begin it with `/`, {runtime}, {state} or {workdir}, "
        "and give one a line",
    ),
    ({"search": ["/a:/b"]}, "search[0]='/a:/b': is no absolute path to a folder; "),
    (
        {"packages": [], "argv": ["{runtime}/node_modules/.bin/x"]},
        "argv[0]='{runtime}/node_modules/.bin/x': {runtime} is an empty folder, for harnesses.mine.packages is "
        "empty; name the npm packages there, or a path of the task's image",
    ),
]


def mine(**changes: Any) -> dict[str, Any]:
    harness = {"_target_": COMMAND, "packages": ["a@{version}"], "argv": ["x"], "environment": {}, "files": {}}
    return harness | {"name": "mine", "search": [], "demonstration": [], **changes}


def told(**changes: Any) -> list[str]:
    return checked({"mine": mine(**changes)})


def checked(harnesses: dict[str, Any]) -> list[str]:
    schedule = {"rollouts_per_prompt": 9, "prompts_per_step": 1, "partial_rollouts": False, "staleness_threshold": 0}
    try:
        check_run({"schedule": schedule, "harnesses": harnesses})
    except ConfigErrors as errors:
        return str(errors).splitlines()
    return []


@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_what_would_not_be_put_in_or_written_is_refused(changes: dict[str, Any], expected: str) -> None:
    (line,) = told(**changes)
    assert line.startswith(f"harnesses.mine.{expected}")


def test_every_rule_has_a_case() -> None:
    broken = {rule for changes, _ in CASES for rule in RULES if list(rule({"harnesses": {"mine": mine(**changes)}}))}
    assert broken == set(RULES)


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": ["{print}", "${bse_url}", "{}", "{unknown}", "{'path': 1}", "{runtime}/x"], "packages": ["a@1"]},
        {"files": {"{state}/x": "{modle} f'{taks}'", "{workdir}/x": ""}},
        {"search": ["{runtime}/bin", "/usr/x", "{workdir}/bin"]},
        {"environment": {"A": "{api_key} {base_url}/v1"}},
        {"demonstration": [{"text": "", "name": None, "arguments": {"a": "{path} {x: 1} {word}", "n": 1}}]},
    ],
)
def test_other_braces_and_texts_of_files_stay(changes: dict[str, Any]) -> None:
    assert told(**changes) == []


@pytest.mark.parametrize("file", [*OWN, *sorted((TREE.configs / "harness").glob("*.yaml"))], ids=lambda path: path.stem)
def test_what_is_shipped_is_right(file: Path) -> None:
    assert checked({file.stem: {**yaml.safe_load(file.read_text()), "name": file.stem}}) == []
