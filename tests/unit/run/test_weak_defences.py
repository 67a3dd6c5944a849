"""A run whose defences do not all enforce says so, and one whose defences do says nothing."""

import pytest

from engine.config.compose import compose
from engine.config.schemas import load_registry
from engine.config.validate import problems
from engine.run.guard import warn, warning


def told(*overrides: str) -> str:
    composed = compose(list(overrides))
    assert problems(composed, load_registry()) == []
    return warning(composed.config)


def test_the_standard_defences_are_told_nothing_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told() == ""
    warn(compose([]).config)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("override", "weak"),
    [
        ("defense.stages.0.mode=off", "leak_scan off"),
        ("defense.stages.1.mode=observe", "withheld_tests observe"),
        ("defense.stages.3.mode=off", "reap_processes off"),
        ("verify.canaries=observe", "canaries observe"),
        ("verify=observe", "canaries observe"),
    ],
)
def test_what_does_not_enforce_is_named(override: str, weak: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(override) == f"WARNING: not every defence enforces ({weak}): rewards can be cheated for"
    warn(compose([override]).config)
    assert weak in capsys.readouterr().err


def test_a_network_that_lets_an_agent_or_its_grader_out_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    lists = ["sandbox.network.build=[a.test]", "sandbox.network.setup=[b.test]"]
    assert told(*lists) == ""
    lists += ["sandbox.network.agent=['pypi.org:443', '*.c.test']", "sandbox.network.grade=['[::1]:80']"]
    assert told(*lists).splitlines() == [
        "WARNING: sandbox.network.agent lets through pypi.org:443, *.c.test: fixes can be fetched",
        "WARNING: sandbox.network.grade lets through [::1]:80: verdicts can depend on the network",
    ]
    warn(compose(lists).config)
    assert "fixes can be fetched" in capsys.readouterr().err


def test_canaries_of_which_none_is_made_are_off() -> None:
    assert "canaries off" in told("verify.canary_files=0", "verify.canary_clones=0")


def test_observing_all_and_having_none_are_told_of_each() -> None:
    enforcing = ("leak_scan", "withheld_tests", "single_commit_history", "test_edits_reverted", "patch_by_contents")
    observed, none = told("defense=observe"), told("defense.stages=[]")
    assert all(f"{name} observe" in observed and f"{name} off" in none for name in enforcing)
    assert "signs" not in observed
    assert "signs off" in none
