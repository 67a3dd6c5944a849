"""Sweeps and gates: their numbers, the way to their runs and trials, evil text, and damage in its place."""

import json
from pathlib import Path
from typing import Any

import httpx
from samples_cases import scored
from test_hostile import harmless
from view_pieces import EVIL, page, shown

from engine.run.gate import Goals, gate
from engine.store.layout import Layout
from engine.store.writer import Writer

GATE = "one~warm-1-abc"


def a_sweep(root: Path, name: str, **changes: Any) -> Path:
    point = {
        "overrides": f"seed={EVIL}",
        "state": "finished",
        "exit_code": 0,
        "steps": 2,
        "reward_first": 0.25,
        "reward_last": 0.5,
        "directory": str(root / "one"),
    }
    away = point | {"state": EVIL, "reward_first": None, "reward_last": None, "directory": None} | changes
    path = root / "sweeps" / name / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"points": [point, away]}))
    return path


async def test_sweeps_point_by_point(browser: httpx.AsyncClient, root: Path) -> None:
    assert (await page(browser, "/sweeps"))["sweeps"] == []
    assert "There is no sweep yet" in await shown(browser, "/sweeps")
    a_sweep(root, "a<b>", directory="/elsewhere/two")
    damaged = a_sweep(root, "damaged")
    damaged.write_text('{"points": [{"overrides": 1}]}')
    found = {sweep["name"]: sweep for sweep in (await page(browser, "/sweeps"))["sweeps"]}
    first, second = found["a<b>"]["points"]
    assert (first["run"], first["reward_first"], first["reward_last"], first["steps"]) == ("one", 0.25, 0.5, 2)
    assert (second["run"], second["directory"]) == (None, "/elsewhere/two")
    assert "summary.json is damaged" in found["damaged"]["problem"]
    text = await shown(browser, "/sweeps")
    assert '<a href="/runs/one/state">one</a>' in text
    harmless(text)
    assert [run["name"] for run in (await page(browser, "/runs"))["runs"]] == ["one"]


async def test_a_gate_and_its_trials(browser: httpx.AsyncClient, root: Path, layout: Layout) -> None:
    assert "There is none yet" in await shown(browser, "/gates")
    trials = [scored(1.0, "a", 0), scored(0.0, "a", 1)]
    writer = Writer(Layout(root=layout.root / "gate" / "warm-1-abc"))
    for one in trials:
        writer.trial(0, one)
    excluded = [scored(None, "a", 2)]
    report = gate(excluded, Goals(valid_calls=0.9, junk=0.1, solve=(0.2, 0.5)))
    Writer(layout).json(
        "reports/warm_start.json", {"model": "/m/warm-1", **report, "solve": {"value": 0.5, "goal": EVIL}}
    )
    (found,) = (await page(browser, "/gates"))["gates"]
    assert (found["name"], found["trials"], found["report"]["solve"]["value"]) == (GATE, 2, 0.5)
    text = await shown(browser, "/gates")
    assert f'href="/runs/{GATE}/trials"' in text
    assert "0.500" in text
    harmless(text)
    listed = await page(browser, f"/runs/{GATE}/trials")
    assert [one["outcome"] for one in listed["trials"]] == ["resolved", "not resolved"]
    assert (await page(browser, f"/runs/{GATE}/trials/train/0/{listed['trials'][0]['name']}/turns"))["turns"]
    for view in ("state", "curves", "numbers", "configuration"):
        await shown(browser, f"/runs/{GATE}/{view}")
    assert "a warm start&#39;s gate" in await shown(browser, f"/runs/{GATE}/state")
    (layout.root / "reports" / "warm_start.json").write_text("{")
    assert "warm_start.json is damaged" in await shown(browser, "/gates")
    await page(browser, "/runs/one~..%2fx/state", 404)
