"""`job=incidence` of a run that is there: starts nothing, prints the table, writes it into that run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from samples_cases import scored

from engine.core.errors import ConfigError
from engine.core.records import Finding
from engine.run.jobs.incidence import IncidenceJob
from engine.store.layout import Layout
from engine.store.writer import Writer

NOTHING: Any = None
"""The configuration: what is there is counted by any."""


async def test_the_trials_of_a_run_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(Layout(root=tmp_path))
    config = {"defense": {"stages": [{"_target_": "engine.defense.signs.Signs", "mode": "observe"}]}, "verify": {}}
    writer.text("config.yaml", yaml.safe_dump({"configuration": config, "configuration_hash": "x"}))
    sign = Finding(stage="signs", phase="extract", detail="looks like an attack: a thing")
    for sample, found in enumerate(((sign,), (), (), ())):
        one = scored(1.0, "a", sample)
        writer.trial(0, replace(one, trajectory=replace(one.trajectory, findings=found)))
    writer.trial(0, scored(None, "b"))
    assert await IncidenceJob(run=str(tmp_path)).run(NOTHING) == 0
    *_, summary, path = capsys.readouterr().out.splitlines()
    assert summary == "5 trials, 1 of them with a finding; 1 ended without a verdict"
    rows = json.loads(Path(path).read_text())["rows"]
    assert [(row["stage"], row["kind"], row["trials"]) for row in rows] == [
        ("canaries", "", 0),
        ("signs", "", 1),
        ("signs", "looks like an attack: a thing", 1),
    ]


async def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        await IncidenceJob(run=str(tmp_path)).run(NOTHING)
