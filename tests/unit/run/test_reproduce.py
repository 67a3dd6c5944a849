"""What is told of a run that is run again, and when other data is refused."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config.bundle import configuration_hash
from engine.config.composed import Written
from engine.core.errors import ConfigError
from engine.run.reproduce import tell, told

CONFIG = {
    "experiment": "plain",
    "seed": 0,
    "run": {"root": "runs", "name": None, "fresh": False},
    "model": {"name": "m"},
    "harnesses": {"a": {"max_turns": 3}},
    "tasks": {"path": "t"},
    "schedule": {"steps": 4},
}
THERE: dict[str, Any] = {
    "configuration": CONFIG,
    "configuration_hash": configuration_hash(CONFIG),
    "code": {"commit": "abc", "dirty": False, "fingerprint": "f0"},
    "python": "3.11.2",
    "platform": "Linux",
    "hardware": {"processor": "A", "cores": 2, "memory_gb": 8, "gpus": []},
    "dependencies": {"numpy": "2.0", "torch": "2.11"},
    "checkpoint": "c0",
    "data": {"t1": "1", "t2": "2", "t3": "3"},
}


def here(**changes: Any) -> dict[str, Any]:
    """The same here but for `changes`; a key of the configuration is `group__name`."""
    made = copy.deepcopy(THERE)
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            made["configuration"][group][name] = value
        else:
            made[key] = value
    return made


def written(description: dict[str, Any] = THERE) -> Written:
    return Written(given="run", path=Path("run/config.yaml"), description=description)


def test_nothing_differs() -> None:
    assert told(written(), here()) == ["running run/config.yaml again: nothing differs here"]


CASES = {
    "command line": (here(schedule__steps=2), "configuration  schedule.steps: 4 → 2"),
    "the place of the run": (here(run__root="elsewhere"), None),
    "commit": (
        here(code={"commit": "def", "dirty": True, "fingerprint": "f1"}),
        "code           abc → def and changes",
    ),
    "files": (
        here(code={"commit": "abc", "dirty": False, "fingerprint": "f1"}),
        "code           abc, but its files differ",
    ),
    "a copy without git": (here(code={"commit": None, "dirty": None, "fingerprint": "f0"}), None),
    "python": (here(python="3.12.1"), "python         3.11.2 → 3.12.1"),
    "dependencies": (
        here(dependencies={"numpy": "2.1", "vllm": "1"}),
        "dependencies   numpy 2.0 → 2.1, torch 2.11 → none, vllm none → 1",
    ),
    "hardware": (
        here(hardware={"processor": "A", "cores": 2, "memory_gb": 8, "gpus": ["H200"]}),
        "hardware       gpus: [] → ['H200']",
    ),
    "tasks": (
        here(data={"t1": "1", "t2": "x", "t4": "4"}),
        "tasks          1 of 3 differ (t2), 1 of 3 missing (t3), 1 new (t4)",
    ),
    "checkpoint": (here(checkpoint="c1"), "checkpoint     c0 → c1"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_a_line(case: str) -> None:
    description, line = CASES[case]
    lines = told(written(), description)
    assert lines[1:] == ([] if line is None else [f"  {line}"])


def test_what_is_not_built_was_not_compared() -> None:
    lines = told(written(), {key: value for key, value in here().items() if key not in ("data", "checkpoint")})
    assert lines[1:] == [
        "  tasks          not built here, so not compared",
        "  checkpoint     not built here, so not compared",
    ]


def test_many_tasks_are_counted_and_a_few_named() -> None:
    (_, line) = told(written(), here(data=dict.fromkeys(THERE["data"], "x") | {f"n{i}": "x" for i in range(9)}))
    assert line.endswith("3 of 3 differ (t1, t2, t3), 9 new (n0, n1, n2, n3, n4, and 4 more)")


def test_an_edited_configuration_is_told() -> None:
    edited = {**THERE, "configuration": {**CONFIG, "seed": 1}}
    lines = told(written(edited), here())
    assert lines[1].startswith("  configuration  edited since, or hashed by another rule: it was ")
    assert lines[2] == "  configuration  seed: 1 → 0"


def test_what_an_older_version_did_not_write_is_told_and_not_held_against_anyone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = {key: THERE[key] for key in ("configuration", "configuration_hash", "data")}
    run_again(here(), there=old)
    shown = capsys.readouterr().err
    assert "python         None → 3.11.2" in shown
    assert "checkpoint     None → c0" in shown


def run_again(description: dict[str, Any], *, other_data: bool = False, there: dict[str, Any] = THERE) -> None:
    built: Any = SimpleNamespace(written=written(there), other_data=other_data)
    tell(built, description)


def test_other_data_is_refused_unless_the_user_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    other = here(data={**THERE["data"], "t2": "x"}, checkpoint="c1")
    with pytest.raises(ConfigError) as refused:
        run_again(other)
    assert str(refused.value) == (
        "from='run': the same configuration gives other tasks (1 of 3 differ (t2)) and another checkpoint (c0 → c1) "
        "here, which is another experiment; bring that run's tasks and checkpoint here, or set run.other_data=true"
    )
    assert refused.value.exit_code == 2
    assert "checkpoint     c0 → c1" in capsys.readouterr().err, "told before it is refused"
    run_again(other, other_data=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks__path": "u", "data": {"t9": "9"}, "checkpoint": "c1"},
        {"model__name": "n", "checkpoint": "c1"},
        {"python": "3.12", "code": {"commit": "d", "dirty": True, "fingerprint": "f1"}},
    ],
)
def test_what_the_command_line_asks_for_is_told_alone(changes: dict[str, Any]) -> None:
    run_again(here(**changes))


def test_a_plain_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tell(SimpleNamespace(written=None, other_data=False), here(data={}))  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
