"""A store that others may have written: links, evil names, half-written files, folders that go while looked at."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from samples_cases import exchange, scored, segment
from view_pieces import EVIL, METRICS, NAME, OTHER, TOKEN, page, shown

from engine.core.records import StepRecord
from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.state import StateFile
from engine.store.writer import Writer

OTHER_TRIAL = f"/runs/one/trials/train/0/{OTHER}"
SECRET = "secret-of-this-machine"
NAMED = EVIL.replace("/", "\u2215")
"""Every sign of EVIL that a file's name can hold."""


def harmless(text: str) -> None:
    assert "<script" not in text
    assert "<img" not in text
    assert not set("\x1b\x07\x9b\u202e\u2028\u200b\x7f") & set(text)
    assert not re.findall(r"(?:src|href)=\"(?!/)|style=|javascript:", text)


# ---------------------------------------------------------------- links


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside the folder of runs, whole as a trial."""
    layout = Layout(root=tmp_path / "elsewhere")
    made = scored(1.0, "x", 0)
    Writer(layout).trial(0, dataclasses.replace(made, trajectory=dataclasses.replace(made.trajectory, reason=SECRET)))
    return layout.trials(0, "train") / "e0-x-s0-a0.parquet"


async def test_a_trial_that_is_a_link_out_of_the_run_is_not_followed(
    browser: httpx.AsyncClient, layout: Layout, secret: Path
) -> None:
    folder = layout.trials(0, "train")
    (folder / "e0-x-s0-a0.parquet").symlink_to(secret)
    (folder / "e0-passwd-s0-a0.parquet").symlink_to("/etc/passwd")
    (folder / "e0-gone-s0-a0.parquet").symlink_to("/nowhere")
    (folder / "e0-loop-s0-a0.parquet").symlink_to("e0-loop-s0-a0.parquet")
    found = {one["name"]: one for one in (await page(browser, "/runs/one/trials?step=0"))["trials"]}
    for name in ("e0-x-s0-a0", "e0-passwd-s0-a0", "e0-gone-s0-a0", "e0-loop-s0-a0"):
        assert found[name]["outcome"] == "damaged"
        for view in ("turns", "tokens"):
            assert "is a link that leads out" in await shown(browser, f"/runs/one/trials/train/0/{name}/{view}", 500)
    for address in ("/runs/one/trials?step=0", "/runs/one/curves", f"{OTHER_TRIAL}/turns"):
        text = (await browser.get(address)).text
        assert SECRET not in text
        assert "root:" not in text


@pytest.mark.parametrize("name", ["config.yaml", "state.json", "tokenizer.json"])
async def test_no_other_file_of_a_run_is_read_through_a_link_out_of_it(
    browser: httpx.AsyncClient, layout: Layout, tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside").write_text(json.dumps({"phase": SECRET, "configuration": SECRET}))
    (layout.root / name).unlink()
    (layout.root / name).symlink_to(tmp_path / "outside")
    for address in ("/runs", "/runs/one/state", "/runs/one/configuration", f"{OTHER_TRIAL}/tokens"):
        assert SECRET not in (await browser.get(address)).text


async def test_a_run_that_its_owner_linked_there_is_shown_and_no_other_folder(
    browser: httpx.AsyncClient, root: Path, layout: Layout, tmp_path: Path
) -> None:
    layout.root.rename(tmp_path / "disk")
    (root / "mine").symlink_to(tmp_path / "disk")
    (root / "etc").symlink_to("/etc")
    (root / "loop").symlink_to("loop")
    assert [run["name"] for run in (await page(browser, "/runs"))["runs"]] == ["mine"]
    assert (await page(browser, f"/runs/mine/trials/train/0/{OTHER}/turns"))["turns"]
    await page(browser, "/runs/etc/state", 404)


# ---------------------------------------------------------------- names


async def test_names_that_are_evil_do_nothing(browser: httpx.AsyncClient, root: Path, layout: Layout) -> None:
    """The run's folder, a trial, its task, harness, calls and their fates, metrics: wherever a name is from."""
    evil = Layout(root=root / NAMED)
    layout.root.rename(evil.root)
    x = dataclasses.replace(
        exchange(EVIL, None, [1, 2], [3]), kind=EVIL, protocol=EVIL, finish_reason=EVIL, error=EVIL, request=EVIL
    )
    made = scored(1.0, NAMED, 0)
    trajectory = dataclasses.replace(
        made.trajectory,
        trial=dataclasses.replace(made.trajectory.trial, harness=EVIL),
        exchanges=(x,),
        segments=(dataclasses.replace(segment([x], [EVIL]), routed_experts=None),),
    )
    Writer(evil).trial(0, dataclasses.replace(made, trajectory=trajectory))
    Writer(evil).step(StepRecord(step=2, policy_version=3, metrics={EVIL: 1.0, f"stages/{EVIL}_p50_s": 1.0}))
    for state in ("pending", "running"):
        Ledger(evil).move(2, [("train", f"{NAMED}-s0-a0")], state)  # type: ignore[arg-type]
    StateFile(evil).update("failed", reason=EVIL, step=2, steps=24)
    base, task = f"/runs/{quote(NAMED)}", quote(f"/e0-{NAMED}-s0-a0")
    addresses = ["/runs", *(f"{base}/{name}" for name in ("state", "curves", "numbers", "configuration", "trials"))]
    addresses += [f"{base}/trials?step=0", f"{base}/trials?step=2", f"{base}/trials/train/0{task}/turns"]
    addresses += [f"{base}/trials/train/0{task}/tokens", f"{base}/trials/train/0/{OTHER}/turns"]
    for address in addresses:
        harmless(await shown(browser, address))
        path, _, query = address.partition("?")
        answer = await browser.get(f"{path}.json?{query}")
        assert answer.status_code == 200
        assert answer.content.isascii()
    assert "window.hacked = 1" in await shown(browser, f"{base}/trials/train/0{task}/turns")


# ---------------------------------------------------------------- files that come and go


async def test_what_is_half_written_is_not_there_yet(browser: httpx.AsyncClient, layout: Layout) -> None:
    """Drafts, as a live run has them beside their places, and the line that the ledger is about to end."""
    before = {address: (await page(browser, address)) for address in ("/runs/one/trials?step=0", "/runs/one/curves")}
    for place in (layout.trials(0, "train") / "e0-new-s0-a0.parquet", layout.step(2), layout.recomputed(2)):
        place.with_name(f".{place.name}.0a1b2c3d").write_bytes(b"PAR1 and then")
    layout.state.with_name(".state.json.0a1b2c3d").write_text('{"phase": "rol')
    layout.ledgers.mkdir(exist_ok=True)
    Ledger(layout).move(0, [("train", OTHER)], "pending")
    with layout.ledger(0).open("a") as file:
        file.write('{"at_s": 1.0, "split": "train", "trial": "e0-new-s0-a0", "sta')
    for address, was in before.items():
        found = await page(browser, address)
        assert {key: found[key] for key in found if key != "ledger"} == {
            key: was[key] for key in was if key != "ledger"
        }
    assert (await page(browser, "/runs/one/trials?step=0"))["ledger"]["states"] == {"pending": 1}
    assert (await page(browser, "/runs/one/state"))["problems"] == []


@pytest.mark.parametrize("view", ["state", "curves", "numbers", "trials?step=0", f"trials/train/0/{OTHER}/tokens"])
@pytest.mark.parametrize("after", ["row", "state", "trials", "rollouts", "last_step", "steps", "recomputed"])
async def test_a_run_that_is_deleted_while_it_is_looked_at(
    browser: httpx.AsyncClient, layout: Layout, view: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever moment it goes: the page is that of what was there, or says that the run is gone."""
    real = getattr(Reader, after)

    def then_it_goes(reader: Reader, *asked: object) -> object:
        found = real(reader, *asked)
        shutil.rmtree(layout.root, ignore_errors=True)
        return found

    monkeypatch.setattr(Reader, after, then_it_goes)
    path, mark, query = view.partition("?")
    answer = await browser.get(f"/runs/one/{path}.json{mark}{query}")
    assert answer.status_code in (200, 404), answer.text
    if answer.status_code == 404:
        assert re.search("was deleted or moved|There is no (run|trial)", answer.json()["error"])
    if not layout.root.exists():
        assert "There is no run" in (await page(browser, f"/runs/one/{view}", 404))["error"]


async def test_a_run_that_is_made_anew_under_its_name_is_read_anew(browser: httpx.AsyncClient, layout: Layout) -> None:
    assert (await page(browser, "/runs/one/curves"))["metrics"]["reward/mean"] == METRICS["reward/mean"]
    shutil.rmtree(layout.root)
    Writer(layout).step(StepRecord(step=0, policy_version=1, metrics={"reward/mean": 0.125}))
    StateFile(layout).update("rollout", step=1, steps=2)
    assert (await page(browser, "/runs/one/curves"))["metrics"] == {"reward/mean": [0.125]}
    assert (await page(browser, "/runs/one/trials"))["trials"] == []


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1", b"<script>", None])
async def test_a_trial_that_is_no_parquet_is_told_of(
    browser: httpx.AsyncClient, layout: Layout, damage: bytes | None
) -> None:
    path = layout.trials(1, "train") / f"{NAME}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2) if damage is None else damage)
    found = {one["name"]: one for one in (await page(browser, "/runs/one/trials?step=1"))["trials"]}
    assert found[NAME]["outcome"] == "damaged"
    assert len(found) > 1
    for view in ("turns", "tokens"):
        text = await shown(browser, f"/runs/one/trials/train/1/{NAME}/{view}", 500)
        assert "is damaged" in text
        harmless(text)
    harmless(await shown(browser, "/runs/one/trials?step=1"))


async def test_no_answer_tells_the_token(browser: httpx.AsyncClient) -> None:
    for address in ("/runs", "/runs.json", "/runs/one/state", "/runs/x/state", "/nothing"):
        answer = await browser.get(address)
        assert TOKEN not in answer.text.split()
        assert "set-cookie" not in answer.headers
