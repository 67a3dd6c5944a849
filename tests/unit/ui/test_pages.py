"""The pages of a made-up run: its numbers, nothing of what its text asks for, and every damage in its place."""

import dataclasses
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from samples_cases import scored
from view_pieces import COOKIE, NAME, OTHER, TOKEN, a_viewed_run, damage, page, shown

from engine.core.records import StepRecord
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.state import StateFile
from engine.store.writer import Writer
from engine.ui import runs
from engine.ui.app import build_app
from engine.ui.render import _near, visible

EVIL_TRIAL = f"/runs/one/trials/train/1/{NAME}"
OTHER_TRIAL = f"/runs/one/trials/train/0/{OTHER}"
PAGES = (
    *("/runs", "/runs/one/state", "/runs/one/curves", "/runs/one/trials", "/runs/one/trials?step=0"),
    *("/runs/one/numbers", "/runs/one/configuration", "/sweeps", "/gates"),
    *("/runs/one/trials?split=validation&step=2", "/runs/one/trials?step=1&outcome=not+resolved"),
    *(f"{EVIL_TRIAL}/turns", f"{EVIL_TRIAL}/tokens", f"{EVIL_TRIAL}/tokens?only=sampled"),
    *(f"{OTHER_TRIAL}/turns", f"{OTHER_TRIAL}/tokens?segment=2", f"{OTHER_TRIAL}/tokens?exchange=x1"),
    "/runs/one/trials/validation/0/e0-v-s0-a0/tokens",
)


async def test_the_root_leads_to_the_runs(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")


async def test_runs_live_and_silent_and_ended(browser: httpx.AsyncClient, root: Path, checkpoint: Path) -> None:
    for name, phase, reason in (("done", "finished", ""), ("killed", "train", ""), ("broken", "failed", "no disk")):
        made = StateFile(a_viewed_run(root / name, checkpoint))
        made.update(phase, step=1, steps=2, reason=reason)  # type: ignore[arg-type]
    killed = json.loads((root / "killed" / "state.json").read_text())
    (root / "killed" / "state.json").write_text(json.dumps(killed | {"heartbeat_s": time.time() - 3600}))
    (root / "notes").mkdir()
    listed = {run["name"]: run for run in (await page(browser, "/runs"))["runs"]}
    assert set(listed) == {"one", "done", "killed", "broken"}
    assert {name for name, run in listed.items() if run["live"]} == {"one"}
    assert {name for name, run in listed.items() if run["silent"]} == {"killed"}
    assert listed["broken"]["reason"] == "no disk"
    assert (listed["one"]["steps_done"], listed["one"]["steps"]) == (2, 24)
    text = await shown(browser, "/runs")
    assert "no sign of life for 60 min" in text
    assert "no disk" in text
    assert 'http-equiv="refresh"' in text
    assert 'http-equiv="refresh"' in await shown(browser, "/runs/one/state")
    assert 'http-equiv="refresh"' not in await shown(browser, "/runs/done/state")


async def test_no_runs_at_all(browser: httpx.AsyncClient, root: Path) -> None:
    root.rename(root.with_name("away"))
    assert (await page(browser, "/runs"))["runs"] == []
    assert "There is no run yet" in await shown(browser, "/runs")


async def test_the_state_of_a_live_run(browser: httpx.AsyncClient, layout: Layout) -> None:
    """The open step is the third; of its four trials three are finished, one of them at the second attempt."""
    writer = Writer(layout)
    for sample, attempt in ((0, 0), (0, 1), (1, 0), (2, 0)):
        writer.trial(2, scored(1.0, "a", sample, attempt=attempt))
    ledger = Ledger(layout)
    ledger.move(2, [("train", f"e0-a-s{sample}-a0") for sample in range(4)], "pending")
    ledger.move(2, [("train", f"e0-a-s{sample}-a0") for sample in range(4)], "running")
    ledger.move(2, [("train", "e0-a-s0-a0")], "excluded", "sandbox_lost")
    for state in ("pending", "running", "finished"):
        ledger.move(2, [("train", "e0-a-s0-a1")], state)
    ledger.move(2, [("train", f"e0-a-s{sample}-a0") for sample in (1, 2)], "finished")
    found = await page(browser, "/runs/one/state")
    assert found["problems"] == []
    assert (found["state"]["phase"], found["state"]["step"], found["state"]["live"]) == ("rollout", 2, True)
    assert (found["now"]["done"], found["now"]["planned"]) == (3, 4)
    assert found["now"]["states"] == {"running": 1, "finished": 3, "excluded": 1}
    assert found["now"]["running"] == ["e0-a-s3-a0"]
    assert (found["trials"]["train"], found["trials"]["validation"]) == (12, 2)
    assert found["metrics"]["reward/mean"] == 0.5
    assert found["metrics"]["loss/kl"] is None  # infinite, which JSON does not know
    (alert,) = found["alerts"]
    assert (alert["alert"], alert["step"]) == ("correlation", 1)
    text = await shown(browser, "/runs/one/state")
    assert "3 of 4 trials of" in text
    assert "1 running, 3 finished, 1 excluded" in text
    assert "2 of 24 steps done" in text
    assert "inf" in text


async def test_what_it_was_started_with(browser: httpx.AsyncClient) -> None:
    written = (await page(browser, "/runs/one/configuration"))["written"]
    assert (written["configuration_hash"], written["dependencies"]) == ("0" * 12, {"torch": "1"})
    assert "configuration_hash: &#39;000000000000&#39;" in await shown(browser, "/runs/one/configuration")


async def test_the_curves(browser: httpx.AsyncClient) -> None:
    found = await page(browser, "/runs/one/curves")
    assert found["steps"] == [1, 2]
    assert found["metrics"]["train/entropy"] == [1.0, 0.9]
    assert {figure["id"] for figure in found["figures"]} >= {"reward", "held-out", "entropy", "gap", "stages"}
    assert ["entropy, nats", "1.000 → 0.900"] in found["headline"]["rows"]
    text = await shown(browser, "/runs/one/curves")
    assert text.count('<svg class="figure"') == len(found["figures"])
    assert "step 2, train/entropy 0.9" in text


async def test_the_numbers_step_by_step(browser: httpx.AsyncClient, layout: Layout) -> None:
    for step in range(2, 60):
        Writer(layout).step(StepRecord(step=step, policy_version=step + 1, metrics={"reward/mean": float(step)}))
    newest = await page(browser, "/runs/one/numbers")
    assert (newest["steps"], newest["total"]) == (list(range(51, 61)), 60)
    assert newest["metrics"] == {"reward/mean": [float(step) for step in range(50, 60)]}
    assert "start=40" in await shown(browser, "/runs/one/numbers")
    first = await page(browser, "/runs/one/numbers?start=0")
    assert (first["steps"][0], first["metrics"]["train/entropy"][:3]) == (1, [1.0, 0.9, None])
    assert (await page(browser, "/runs/one/numbers?start=99"))["steps"] == []
    assert "No step is finished there" in await shown(browser, "/runs/one/numbers?start=99")


async def test_rewards_that_there_was_no_time_to_read(
    browser: httpx.AsyncClient, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gaps, no number is made of what is left, and the page goes on by itself."""
    StateFile(layout).update("finished", step=1, steps=2)
    monkeypatch.setattr(runs, "PATIENCE_S", 0.0)
    found = await page(browser, "/runs/one/curves")
    assert (found["unread"], found["headline"]["rows"], found["live"]) == (5, [], True)
    assert "reward" not in {figure["id"] for figure in found["figures"]}
    assert found["metrics"]["reward/mean"] == [0.25, 0.5]
    text = await shown(browser, "/runs/one/curves")
    assert "Rewards of 5 steps and validations are not read yet" in text
    assert 'http-equiv="refresh"' in text
    monkeypatch.setattr(runs, "PATIENCE_S", 60.0)
    found = await page(browser, "/runs/one/curves")
    assert (found["unread"], found["live"]) == (0, False)
    assert found["headline"]["rows"]


def test_of_many_steps_the_ends_the_neighbours_and_some_between_are_offered() -> None:
    assert _near(range(30), 3) == list(range(30))
    offered = _near(range(0, 2000, 2), 1000)
    assert offered[:2] == [0, None]
    assert offered[-1] == 1998
    assert set(range(984, 1018, 2)) <= set(offered)
    assert len(offered) < 70
    assert all(one is not None or other is not None for one, other in pairwise(offered))
    assert _near([], None) == []
    assert _near([4], 9) == [4]


# ---------------------------------------------------------------- text that must not do what it says


@pytest.mark.parametrize("address", PAGES)
async def test_no_text_leaves_its_place(browser: httpx.AsyncClient, address: str) -> None:
    text = await shown(browser, address)
    assert "<script" not in text
    assert "<img" not in text
    assert not set("\x1b\x07\x9b\u202e\u2028\u200b\x7f") & set(text)
    assert not re.findall(r"(?:src|href)=\"(?!/)|https?://(?!www\.w3\.org)|style=|javascript:", text)


@pytest.mark.parametrize("address", [f"{EVIL_TRIAL}/turns", "/runs/one/trials?step=1", "/runs/one/configuration"])
async def test_what_would_be_obeyed_is_shown(browser: httpx.AsyncClient, address: str) -> None:
    text = await shown(browser, address)
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in text
    assert "␛]0;taken␇␛[2J" in text or "\\e]0;taken\\a" in text  # YAML has escapes of its own


@pytest.mark.parametrize("address", PAGES)
async def test_json_is_the_same_in_plain_characters(browser: httpx.AsyncClient, address: str) -> None:
    path, _, query = address.partition("?")
    answer = await browser.get(f"{path}.json?{query}")
    assert answer.content.isascii()
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", answer.content)
    assert "error" not in answer.json()


def test_every_character_that_is_obeyed_is_made_visible() -> None:
    assert visible("plain\n\ttext é 漢") == "plain\n\ttext é 漢"
    assert visible("\x1b[31m") == "␛[31m"
    assert visible("a\r\x00\x7f") == "a␍␀␡"
    assert visible("\x9b\u202e\u2066\ufeff\ud800\U000e0041") == "⟨U+009B⟩⟨U+202E⟩⟨U+2066⟩⟨U+FEFF⟩⟨U+D800⟩⟨U+E0041⟩"


# ---------------------------------------------------------------- addresses and damage


@pytest.mark.parametrize("address", [
    "/runs/two/state", "/runs/../state", "/runs/..%2f..%2fetc/state", "/runs/%2e%2e/state", "/runs/%00/state",
    "/runs/one/nothing", "/runs/one/trials/train/9/x/turns", "/runs/one/trials/train/0/../turns",
    "/runs/one/trials/train/0/%2e%2e/turns", f"/runs/one/trials/train/1/..%2Fstep=000000%2F{OTHER}/turns",
    f"/runs/one/trials/validation/0/{OTHER}/turns", f"/runs/one/trials/warm_start/0/{OTHER}/turns",
    f"/runs/one/trials/train/-1/{OTHER}/turns", f"/runs/one/trials/train/99999999999999999999/{OTHER}/turns",
    "/runs/one/trials?step=x", "/runs/one/trials?step=-1", "/runs/one/trials?split=../validation",
    f"{OTHER_TRIAL}/tokens?segment=3", f"{OTHER_TRIAL}/tokens?segment=%C2%B2", f"{OTHER_TRIAL}/tokens?exchange=x9",
    f"{OTHER_TRIAL}/tokens?start=1e3", "/static/../app.py", "/static/%2e%2e/app.py", "/etc/passwd",
])  # fmt: skip
async def test_an_address_that_names_nothing(root: Path, layout: Layout, address: str) -> None:
    status, text = await asked_as_it_is(root, address)
    assert status == 404, text
    assert '<p class="problem">' in text


async def asked_as_it_is(root: Path, address: str) -> tuple[int, str]:
    """Status and text of an answer; a client would resolve the dots before it asks."""
    path, _, query = address.partition("?")
    headers = [(b"host", b"localhost"), (b"cookie", f"{COOKIE}={TOKEN}".encode())]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "scheme": "http",
        "server": ("127.0.0.1", 1),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await build_app(root, TOKEN, COOKIE)(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_what_an_error_quotes_does_nothing_either(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/runs/%3Cscript%3E%1b%5B2J/state")
    assert "<script" not in answer.text
    assert "\x1b" not in answer.text
    found = await page(browser, "/runs/%3Cscript%3E%1b%5B2J/state", 404)
    assert found["error"].startswith("There is no run '<script>")


async def test_damage_stays_on_its_own_page(browser: httpx.AsyncClient, layout: Layout, checkpoint: Path) -> None:
    a_viewed_run(layout.root.with_name("whole"), checkpoint)
    damage(layout)
    listed = {run["name"]: run for run in (await page(browser, "/runs"))["runs"]}
    assert "state.json is damaged" in listed["one"]["problem"]
    assert listed["whole"]["problem"] == ""
    assert "state.json is damaged" in await shown(browser, "/runs")

    problems = (await page(browser, "/runs/one/state"))["problems"]
    for name, problem in zip(("state.json", ".json"), problems, strict=True):
        assert f"{name} is damaged" in problem
    assert (await shown(browser, "/runs/one/state")).count('class="problem"') == 2
    assert "config.yaml is damaged" in await shown(browser, "/runs/one/configuration")
    assert "step=000000.parquet is damaged" in await shown(browser, "/runs/one/numbers", 500)

    assert "step=000000.parquet is damaged" in (await page(browser, "/runs/one/curves", 500))["error"]
    assert "step=000000.parquet is damaged" in await shown(browser, "/runs/one/curves", 500)

    trials = {one["name"]: one for one in (await page(browser, "/runs/one/trials?step=0"))["trials"]}
    assert trials[OTHER]["outcome"] == "damaged"
    assert f"{OTHER}.parquet is damaged" in trials[OTHER]["problem"]
    assert trials["e0-a-s1-a0"]["outcome"] == "not resolved"
    assert f"{OTHER}.parquet is damaged" in await shown(browser, "/runs/one/trials?step=0")
    assert f"{OTHER}.parquet is damaged" in await shown(browser, f"{OTHER_TRIAL}/turns", 500)

    sound = await page(browser, "/runs/one/trials/train/0/e0-a-s1-a0/tokens")
    assert "step=000000.parquet is damaged" in sound["why_not_recomputed"]
    assert "tokenizer.json cannot be used" in sound["why_no_texts"]
    assert sound["tokens"][-1]["captured"] is not None
    assert len((await page(browser, "/runs/one/trials/train/0/e0-a-s1-a0/turns"))["problems"]) == 1


async def test_a_file_that_holds_something_else_is_an_error_of_its_page(
    browser: httpx.AsyncClient, layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """A segment that names a call which is not there: whole as a file, and yet no trial."""
    made = scored(1.0, "a", 0)
    lost = dataclasses.replace(made.trajectory.segments[0], exchanges=("\x1b[2J",))
    wrong = dataclasses.replace(made, trajectory=dataclasses.replace(made.trajectory, segments=(lost,)))
    Writer(layout).trial(0, wrong)
    text = await shown(browser, f"{OTHER_TRIAL}/turns", 500)
    assert "KeyError" in text
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "\x1b" not in told
    assert (await browser.get("/runs/one/trials?step=0")).status_code == 200


async def test_a_state_of_odd_values_breaks_no_listing(browser: httpx.AsyncClient, layout: Layout) -> None:
    odd = (
        '{"phase": 1, "reason": ["x"], "step": "x", "steps": 2, "heartbeat_s": NaN, "started_s": 1e300, "wall_s": NaN}'
    )
    layout.state.write_text(odd)
    assert (await page(browser, "/runs"))["runs"][0]["problem"] == ""
    await shown(browser, "/runs")
    await shown(browser, "/runs/one/state")
