"""A real small run looked at in a real Chromium: while it samples, trains and validates, and after its end.

Every page that a link leads to complains of nothing and asks no other host; the numbers on it are those of the run's
files, which this module reads by itself.
"""

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pyarrow.parquet as pq
import pytest
from chromium import PROGRAM, Chromium, chromium
from view_look import crawl, quiet
from view_server import viewing
from whole_runs import HELD_OUT, OVERRIDES, ROOT, SAMPLES, STEPS, TASKS, directory, prepare

from engine.store.layout import Layout
from engine.store.ledger import read_ledger
from engine.store.state import read_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian's package chromium)"),
]
PHASES = {"rollout": 1, "train": 1, "validation": STEPS - 1}
"""Where the run is held, from which step on: the first is then there to be drawn."""
FEW = 40
"""Pages of one walk over a run that is held: its agents wait."""


@contextmanager
def running(root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (root.parent / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "engine", *OVERRIDES, f"run.root={root}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def until(phase: str, root: Path, process: "subprocess.Popen[bytes]") -> Layout:
    """The run is in a phase, of PHASES' step or a later one; while it samples, with a trial that has ended."""
    deadline = time.monotonic() + 600
    while True:
        folder = directory(root)
        state = (read_state(Layout(root=folder)) if folder else None) or {"phase": "", "step": 0}
        if folder and state["phase"] == phase and state["step"] >= PHASES[phase]:
            trials = Layout(root=folder).trials(state["step"], "train")
            if phase != "rollout" or any(trials.glob("*.parquet")):
                return Layout(root=folder)
        assert process.poll() is None, (root.parent / "log.txt").read_text()[-3000:]
        assert time.monotonic() < deadline, f"the run never came to {phase}"
        await asyncio.sleep(0.01)


async def test_a_real_run_live_and_finished(tmp_path: Path) -> None:
    prepare()
    root = tmp_path / "runs"
    with viewing(tmp_path) as started, running(root) as process:
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(started.address))
        async with chromium() as tab, httpx.AsyncClient(base_url=origin, timeout=60) as client:
            await client.get(started.address)
            await quiet(tab, started.address)
            for phase in PHASES:
                layout = await until(phase, root, process)
                process.send_signal(signal.SIGSTOP)  # its files stay as they are while pages and files are compared
                await held(tab, client, layout)
                process.send_signal(signal.SIGCONT)
                if phase == "rollout":  # and once while everything moves
                    await crawl(tab, client, "/runs", lambda pages: pages < FEW)
            assert process.wait(600) == 0, (root.parent / "log.txt").read_text()[-3000:]
            pages = await crawl(tab, client, "/runs", lambda pages: True)
            assert pages["/runs"]["runs"][0]["phase"] == "finished"
            finished(layout, pages)
        assert started.end()[0] == 130


async def held(tab: Chromium, client: httpx.AsyncClient, layout: Layout) -> None:
    """A run that stands still in the middle of its work."""
    state = read_state(layout)
    assert state is not None
    pages = await crawl(tab, client, f"/runs/{layout.root.name}/state", lambda pages: pages < FEW)
    shown = pages[f"/runs/{layout.root.name}/state"]
    assert shown["live"]
    for name in ("phase", "step", "steps", "policy_version", "pid", "started_s", "heartbeat_s"):
        assert shown["state"][name] == state[name], name
    assert shown["state"]["steps_done"] == len(list(layout.steps.glob("step=*.parquet")))
    split, step = (
        ("validation", state["policy_version"]) if state["phase"] == "validation" else ("train", state["step"])
    )
    begun = any(of == split for of, _ in read_ledger(layout, step))  # a phase begins a moment before its ledger
    assert (shown["now"] is not None) == (begun and state["phase"] != "train")
    same_numbers(layout, pages)


def finished(layout: Layout, pages: dict[str, dict[str, Any]]) -> None:
    """Every trial of every step was reached, turn by turn and token by token."""
    base = f"/runs/{layout.root.name}"
    compared = same_numbers(layout, pages)
    assert compared["tokens"] and compared["figures"]
    for split, steps, trials in (("train", range(STEPS), TASKS * SAMPLES), ("validation", [STEPS], HELD_OUT)):
        for step in steps:
            folder = layout.trials(step, split)  # type: ignore[arg-type]
            names = {path.stem for path in folder.glob("*.parquet")}
            assert len(names) >= trials
            for name in names:
                place = f"{base}/trials/{split}/{step}/{name}"
                assert pages[f"{place}/turns"]["turns"], place
                assert any(address.startswith(f"{place}/tokens") for address in pages), place
            page = pages[f"{base}/trials?split={split}&step={step}"]
            ended = Counter("excluded" if one["outcome"] == "excluded" else "kept" for one in page["trials"])
            states = Counter(state for (of, _), state in read_ledger(layout, step).items() if of == split)
            assert ended == +Counter({"excluded": states.pop("excluded", 0), "kept": states.total()})
    graded = [page for page in pages.values() if "turns" in page and page["outcome"] != "excluded"]
    assert graded and all(page["trial"]["evidence"] and page["trial"]["tests"] for page in graded)


# ---------------------------------------------------------------- pages against files


def same_numbers(layout: Layout, pages: dict[str, dict[str, Any]]) -> Counter[str]:
    """Each page says what the files say; how many of each kind were compared."""
    compared: Counter[str] = Counter()
    for address, page in pages.items():
        kind = urlsplit(address).path.rpartition("/")[2]
        if kind == "trials":
            trials(layout, page)
        elif kind == "tokens":
            tokens(layout, page, parse_qs(urlsplit(address).query))
        elif kind in ("curves", "numbers"):
            compared["figures"] += curves(layout, page)
        elif kind == "turns":
            turns(layout, page)
        compared[kind] += 1
    return compared


def row(layout: Layout, page: dict[str, Any], name: str) -> dict[str, Any]:
    path = layout.trials(page["step"], page["split"]) / f"{name}.parquet"
    found: dict[str, Any] = pq.ParquetFile(path).read().to_pylist()[0]
    return found


def trials(layout: Layout, page: dict[str, Any]) -> None:
    states = Counter(state for (of, _), state in read_ledger(layout, page["step"]).items() if of == page["split"])
    assert page["ledger"]["states"] == dict(states)
    for one in page["trials"]:
        stored = row(layout, page, one["name"])
        assert one["reward"] == stored["reward"]
        assert one["timings"] == dict(stored["timings"])
        assert one["outcome"] == outcome(stored)
    if not page["outcome"]:
        assert {one["name"] for one in page["trials"]} == {
            path.stem for path in layout.trials(page["step"], page["split"]).glob("*.parquet")
        }
        counts = Counter(one["outcome"] for one in page["trials"])
        shown: Counter[str] = Counter()
        for group in page["outcomes"]:
            shown[group["outcome"]] += group["trials"]
        assert shown == counts


def outcome(stored: dict[str, Any]) -> str:
    return "excluded" if stored["excluded"] else "resolved" if stored["resolved"] else "not resolved"


def turns(layout: Layout, page: dict[str, Any]) -> None:
    stored = row(layout, page, page["name"])
    assert [turn["id"] for turn in page["turns"]] == [one["id"] for one in stored["exchanges"]]
    assert [turn["sampled_tokens"] for turn in page["turns"]] == [
        len(one["sampled_ids"]) for one in stored["exchanges"]
    ]
    for name in ("reward", "evidence", "diff", "termination", "reason", "seed"):
        assert page["trial"][name] == stored[name], name
    assert not any(turn["unreadable"] for turn in page["turns"])


def tokens(layout: Layout, page: dict[str, Any], query: dict[str, list[str]]) -> None:
    assert page["why_no_texts"] == ""
    stored = row(layout, page, page["name"])
    if page["exchange"] is not None:
        return
    segment = stored["segments"][page["segment"]]
    again = recomputed(layout, page)
    for token in page["tokens"]:
        at = token["position"]
        assert token["id"] == segment["token_ids"][at]
        assert token["target"] == segment["target"][at]
        assert token["captured"] == (segment["logprobs"][at] if token["target"] else None)
        assert token["policy_version"] == (segment["policy_versions"][at] if token["target"] else None)
        rank = sum(segment["target"][:at])
        assert token["recomputed"] == (again[rank] if again and token["target"] else None)
    assert page["selected"] == (page["total"] if "only" not in query else sum(x["sampled"] for x in page["tokens"]))


def recomputed(layout: Layout, page: dict[str, Any]) -> list[float]:
    path = layout.recomputed(page["step"])
    if page["split"] != "train" or not path.exists():
        return []
    rows = pq.ParquetFile(path).read().to_pylist()
    found = [one["logprobs"] for one in rows if (one["trial"], one["segment"]) == (page["name"], page["segment"])]
    return list(found[0]) if found else []


def curves(layout: Layout, page: dict[str, Any]) -> int:
    stored = [pq.ParquetFile(path).read().to_pylist()[0] for path in sorted(layout.steps.glob("step=*.parquet"))]
    metrics = {one["step"] + 1: dict(one["metrics"]) for one in stored}
    assert page["steps"] == sorted(metrics)
    for name, values in page["metrics"].items():
        assert values == [metrics[step].get(name) for step in page["steps"]], name
    drawn = {
        trace["name"]: trace for figure in page.get("figures", ()) for trace in figure["traces"] if "name" in trace
    }
    for name in ("train/entropy", "loss/kl", "alignment/pearson_r", "tokens/sampled"):
        if drawn and page["steps"]:
            assert dict(zip(drawn[name]["x"], drawn[name]["y"], strict=True)) == {
                step: metrics[step][name] for step in page["steps"]
            }
    return len(drawn)
