"""How often each defence found something, counted from a store."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from samples_cases import scored

from engine.core.errors import ConfigError
from engine.core.records import Finding, Scored
from engine.observe.incidence import Incidence, incidences, table
from engine.store.layout import Layout
from engine.store.reader import Reader
from engine.store.writer import Writer

DEFENCES = {
    "defense": {
        "stages": [
            {"_target_": "engine.defense.signs.Signs", "mode": "observe"},
            {"_target_": "engine.defense.leak_scan.LeakScan", "mode": "enforce"},
            {"_target_": "engine.defense.withheld_tests.WithheldTests", "mode": "off"},
        ]
    },
    "verify": {"canaries": "observe"},
}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(root=tmp_path / "run")
    Writer(layout).text("config.yaml", yaml.safe_dump({"configuration": DEFENCES, "configuration_hash": "x"}))
    return layout


def found(sample: int, *findings: Finding, of_grading: tuple[Finding, ...] = (), attempt: int = 0) -> Scored:
    one = scored(0.0, "a", sample)
    trial = one.trajectory.trial
    trial = dataclasses.replace(trial, key=dataclasses.replace(trial.key, attempt=attempt))
    trajectory = dataclasses.replace(one.trajectory, trial=trial, findings=findings)
    assert one.verdict is not None
    return Scored(trajectory=trajectory, verdict=dataclasses.replace(one.verdict, findings=of_grading))


def sign(what: str) -> Finding:
    return Finding(stage="signs", phase="agent", detail=f"looks like an attack: {what}")


def test_a_trial_counts_once_for_a_defence_and_once_for_a_kind(layout: Layout) -> None:
    canary = Finding(stage="canaries", phase="grade", detail="a canary turned", acted=True)
    for one in (
        found(0, sign("a search (call 1)"), sign("a search (call 12)"), sign("a download (call 1)")),
        found(1, sign("a search (call 3)"), of_grading=(canary,)),
        found(2),
        found(3),
    ):
        Writer(layout).trial(0, one)
    counted = incidences(Reader(layout))
    assert (counted.trials, counted.any_finding, counted.excluded) == (4, 2, 0)
    assert [(row.stage, row.kind, row.trials, row.acted, row.share) for row in counted.rows] == [
        ("canaries", "", 1, 1, 0.25),
        ("canaries", "a canary turned", 1, 1, 0.25),
        ("leak_scan", "", 0, 0, 0.0),
        ("signs", "", 2, 0, 0.5),
        ("signs", "looks like an attack: a download", 1, 0, 0.25),
        ("signs", "looks like an attack: a search", 2, 0, 0.5),
    ]
    none, half = counted.rows[2], counted.rows[3]
    assert (round(none.low, 4), round(none.high, 4)) == (0.0, 0.4899)  # Wilson, 0 of 4 and 2 of 4
    assert (round(half.low, 4), round(half.high, 4)) == (0.15, 0.85)
    heads, rows = table(counted)
    assert {len(row) for row in rows} == {len(heads)}
    assert rows[3] == ("signs", "anything", "2", "50.0%", "15.0% – 85.0%", "0")


def test_of_a_trial_that_was_tried_again_the_last_attempt_counts(layout: Layout) -> None:
    Writer(layout).trial(0, found(0, sign("a search")))
    Writer(layout).trial(0, found(0, attempt=1))
    Writer(layout).trial(0, found(1, sign("a search"), attempt=10))
    Writer(layout).trial(0, found(1, attempt=9))
    counted = incidences(Reader(layout))
    assert (counted.trials, counted.any_finding) == (2, 1)


def test_numbers_make_no_kind_of_their_own(layout: Layout) -> None:
    for sample in range(3):
        detail = f"{sample + 1} processes outlived the agent"
        Writer(layout).trial(0, found(sample, Finding(stage="reap_processes", phase="extract", detail=detail)))
    kinds: dict[str, Incidence] = {row.kind: row for row in incidences(Reader(layout)).rows if row.trials}
    assert {kind: row.trials for kind, row in kinds.items()} == {"": 3, "# processes outlived the agent": 3}


def test_without_a_finished_trial_there_is_nothing_to_count(layout: Layout) -> None:
    with pytest.raises(ConfigError, match="no trial of this run is finished"):
        incidences(Reader(layout))
