"""The pages of a step's trials, of one trajectory turn by turn, and of its tokens."""

import json
import shutil
from dataclasses import replace

import httpx
import pytest
from atif_pieces import with_all_parts
from samples_cases import scored, trial
from view_pieces import GAP, NAME, OTHER, SCRIPT, forget, page, shown

from engine.store.layout import Layout
from engine.store.ledger import Ledger
from engine.store.reader import Reader
from engine.store.writer import Writer
from engine.ui import tokens

EVIL_TRIAL = f"/runs/one/trials/train/1/{NAME}"
OTHER_TRIAL = f"/runs/one/trials/train/0/{OTHER}"


async def test_trials_by_outcome(browser: httpx.AsyncClient) -> None:
    found = await page(browser, "/runs/one/trials?step=0")
    assert {(one["outcome"], one["termination"]): one["trials"] for one in found["outcomes"]} == {
        ("resolved", "agent_completed"): 1,
        ("not resolved", "agent_completed"): 2,
        ("excluded", "sandbox_lost"): 1,
    }
    assert found["steps"] == {"train": [0, 1], "validation": [0, 2]}
    newest = await page(browser, "/runs/one/trials")
    assert newest["step"] == 1
    assert newest["stages"][:2] == ["agent", "grade"]
    (failed,) = (one for one in newest["outcomes"] if one["outcome"] == "not resolved")
    assert (failed["trials"], failed["reward"]) == (2, 0.0)
    assert failed["stages"]["agent"] == {"p50": 1.5, "p90": 1.5}
    (evil,) = (one for one in newest["trials"] if one["name"] == NAME)
    assert (evil["findings"], evil["timings"]["grade"], evil["outcome"]) == (2, 0.25, "not resolved")
    chosen = await page(browser, "/runs/one/trials?step=1&outcome=resolved")
    assert {one["outcome"] for one in chosen["trials"]} == {"resolved"}
    assert len(chosen["trials"]) == 2


async def test_a_new_trial_and_a_trial_that_changed_are_seen(browser: httpx.AsyncClient, layout: Layout) -> None:
    before = await page(browser, "/runs/one/trials?step=0")
    Writer(layout).trial(0, scored(1.0, "a", 7))
    Writer(layout).trial(0, scored(1.0, "b", 0))
    after = await page(browser, "/runs/one/trials?step=0")
    assert len(after["trials"]) == len(before["trials"]) + 1
    assert sum(one["outcome"] == "resolved" for one in after["trials"]) == 3


async def test_a_trajectory_turn_by_turn(browser: httpx.AsyncClient) -> None:
    found = await page(browser, f"{EVIL_TRIAL}/turns")
    first, second = found["turns"]
    assert [said["role"] for said in first["messages"]] == ["system", "user"]
    assert [said["role"] for said in second["messages"]] == ["assistant", "tool"]  # what is new, as the harness says it
    assert second["answer"]["text"] == "done"
    assert (first["repeats"], second["repeats"]) == (False, True)
    text = await shown(browser, f"{EVIL_TRIAL}/turns")
    assert text.count("The answer of x0, as it was.") == 1
    assert (text.count("(grade, only noted)"), text.count("only noted")) == (1, 1), "the other finding was acted upon"
    assert json.loads(first["answer"]["calls"][0]["arguments"]) != {}
    assert (first["segment"], first["position"]) == (0, first["prompt_length"])
    assert (second["segment"], second["position"]) == (0, second["prompt_length"])
    assert second["prompt_length"] == first["prompt_length"] + first["sampled_tokens"] + second["new_prompt_tokens"]
    assert first["policy_versions"] == [3]
    assert found["advantage"] == 0.5
    assert list(found["timings"])[:2] == ["agent", "grade"]
    assert found["trial"]["tests"][0]["outcome"] == "failed"
    assert found["segments"][0]["trained"] == first["sampled_tokens"] + second["sampled_tokens"]


async def test_the_trials_that_a_reward_is_compared_with(browser: httpx.AsyncClient) -> None:
    found = await page(browser, f"{OTHER_TRIAL}/turns")
    assert found["group"] == [
        {"name": "e0-a-s0-a0", "outcome": "resolved", "reward": 1.0},
        {"name": "e0-a-s1-a0", "outcome": "not resolved", "reward": 0.0},
    ]
    assert 'class="here">s0-a0</a> resolved, <a' in await shown(browser, f"{OTHER_TRIAL}/turns")


async def test_a_run_that_begins_with_a_validation_shows_it(browser: httpx.AsyncClient, layout: Layout) -> None:
    shutil.rmtree(layout.rollouts("train"))
    found = await page(browser, "/runs/one/trials")
    assert (found["split"], found["step"], len(found["trials"])) == ("validation", 2, 1)
    assert (await page(browser, "/runs/one/trials?split=train"))["trials"] == []


async def test_a_step_that_is_not_there_is_told_with_those_that_are(browser: httpx.AsyncClient, layout: Layout) -> None:
    told = "There is no step 99 (counted from 0) of split 'train' in this run; there are 0, 1."
    assert (await page(browser, "/runs/one/trials?step=99", 404))["error"] == told
    assert "there are 0, 1." in await shown(browser, "/runs/one/trials?step=99", 404)
    assert (await page(browser, "/runs/one/trials?split=validation&step=1", 404))["error"].endswith("there are 0, 2.")
    Ledger(layout).move(99, [("train", "e0-a-s0-a0")], "pending")
    begun = await page(browser, "/runs/one/trials?step=99")
    assert (begun["ledger"]["planned"], begun["trials"]) == (1, [])


async def test_a_token_that_is_a_whole_text_is_cut(browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "é" + "x" * 10_000
    monkeypatch.setattr(tokens, "_texts", lambda reader, ids: ([long] * len(ids), ""))
    found = await page(browser, f"{EVIL_TRIAL}/tokens")
    assert found["tokens"][0]["text"] == long
    text = await shown(browser, f"{EVIL_TRIAL}/tokens")
    assert "and 9761 characters more" in text
    assert len(text) < 1000 * len(found["tokens"])


async def test_bodies_that_are_no_chat_are_shown_as_they_are(browser: httpx.AsyncClient) -> None:
    found = await page(browser, f"{OTHER_TRIAL}/turns")
    kinds = {turn["id"]: (turn["kind"], turn["segment"], turn["position"]) for turn in found["turns"]}
    assert kinds == {
        "x0": ("policy", 0, 3),
        "x1": ("side", None, 0),
        "x2": ("discarded", None, 0),
        "x3": ("policy", 0, 7),
        "x4": ("policy", 1, 8),
        "x5": ("policy", 2, 3),
    }
    assert found["turns"][0]["messages"] == []
    assert found["turns"][0]["unreadable"] == ["{}"]
    assert "a body that is none of openai_chat" in await shown(browser, f"{OTHER_TRIAL}/turns")


async def test_what_a_conversation_was_is_told(browser: httpx.AsyncClient, layout: Layout) -> None:
    """pier PR#12: the count of compactions was always 0, since they were looked for where none is told."""
    told = with_all_parts().scored()
    Writer(layout).trial(1, replace(told, trajectory=replace(told.trajectory, trial=trial("told"))))
    address = "/runs/one/trials/train/1/e0-told-s0-a0/turns"
    found = await page(browser, address)
    assert [(part["kind"], part["exchanges"], part["after"]) for part in found["conversation"]] == [
        ("main", ["x0", "x2"], None),
        ("sub_agent", ["x1"], "x0"),
        ("summary", ["x3"], "x2"),
        ("continuation", ["x4"], "x2"),
    ]
    shown_parts = "main: x0, x2<br>sub-agent: x1, after x0<br>summary: x3, after x2<br>continuation: x4, after x2<br>"
    assert f"<th>conversation</th><td>{shown_parts}</td>" in await shown(browser, address)


async def test_a_trajectory_down_to_its_tokens(browser: httpx.AsyncClient, layout: Layout) -> None:
    row = Reader(layout).row(1, "train", NAME)
    (segment,) = row["segments"]
    found = await page(browser, f"{EVIL_TRIAL}/tokens")
    assert (found["why_no_texts"], found["why_not_recomputed"]) == ("", "")
    tokens = found["tokens"]
    assert [token["id"] for token in tokens] == segment["token_ids"]
    assert [token["target"] for token in tokens] == segment["target"]
    assert "".join(token["text"] for token in tokens) == f"mend it\n{SCRIPT}\tresultdone"
    for token, captured in zip(tokens, segment["logprobs"], strict=True):
        if token["target"]:
            assert token["captured"] == captured
            assert token["gap"] == pytest.approx(GAP, rel=1e-3)
            assert token["recomputed"] == pytest.approx(captured + GAP)
            assert token["policy_version"] == 3
        else:
            assert (token["captured"], token["recomputed"], token["policy_version"]) == (None, None, None)
    alone = await page(browser, f"{EVIL_TRIAL}/tokens?only=sampled")
    assert "".join(token["text"] for token in alone["tokens"]) == f"{SCRIPT}done"


async def test_a_token_of_two_segments_is_trained_in_one(browser: httpx.AsyncClient) -> None:
    """The shared turn x0 is a target of the first segment alone; x5 was sampled by older weights."""
    second = await page(browser, f"{OTHER_TRIAL}/tokens?segment=1")
    states = [(token["exchange"], token["sampled"], token["target"]) for token in second["tokens"]]
    assert states.count(("x0", True, False)) == 3
    assert states.count(("x4", True, True)) == 1
    third = await page(browser, f"{OTHER_TRIAL}/tokens?segment=2")
    assert {token["policy_version"] for token in third["tokens"] if token["target"]} == {2}
    assert all(token["gap"] == pytest.approx(GAP, rel=1e-3) for token in third["tokens"] if token["target"])


async def test_calls_that_are_in_no_segment_have_their_tokens_too(browser: httpx.AsyncClient) -> None:
    found = await page(browser, f"{OTHER_TRIAL}/tokens?exchange=x2")
    assert found["apart"] == ["x1", "x2"]
    assert [(token["position"], token["id"], token["sampled"]) for token in found["tokens"]] == [
        (6, 5, False),
        (7, 20, True),
        (8, 29, True),
    ]
    assert found["tokens"][1]["captured"] == pytest.approx(-0.7)
    assert not any(token["target"] for token in found["tokens"])
    assert found["why_not_recomputed"] == "this call is in no segment: nothing of it is trained"


async def test_long_streams_are_cut_into_pages(browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "AT_ONCE", 10)
    whole = (await page(browser, f"{EVIL_TRIAL}/tokens"))["total"]
    seen: list[int] = []
    while len(seen) < whole:
        part = await page(browser, f"{EVIL_TRIAL}/tokens?start={len(seen)}")
        assert 0 < len(part["tokens"]) <= 10
        seen += [token["position"] for token in part["tokens"]]
    assert seen == list(range(whole))
    text = await shown(browser, f"{EVIL_TRIAL}/tokens?start=20")
    assert "start=10" in text
    assert "start=30" in text
    assert (await page(browser, f"{EVIL_TRIAL}/tokens?start=100000"))["tokens"] == []


async def test_what_an_older_run_lacks_is_said(browser: httpx.AsyncClient, layout: Layout) -> None:
    forget(layout)
    found = await page(browser, f"{EVIL_TRIAL}/tokens")
    assert found["why_no_texts"].startswith("the run keeps no tokenizer.json")
    assert found["why_not_recomputed"].startswith("the trainer has not reached this step")
    assert {token["text"] for token in found["tokens"]} == {None}
    assert found["tokens"][-1]["captured"] is not None
    text = await shown(browser, f"{EVIL_TRIAL}/tokens")
    assert "No texts: the run keeps no tokenizer.json" in text
    held_out = await page(browser, "/runs/one/trials/validation/0/e0-v-s0-a0/tokens")
    assert held_out["why_not_recomputed"].startswith("held-out trials are not trained")


async def test_an_excluded_trial_was_not_seen_by_the_trainer(browser: httpx.AsyncClient) -> None:
    address = "/runs/one/trials/train/0/e0-b-s1-a0"
    assert (await page(browser, f"{address}/tokens"))["why_not_recomputed"].startswith("the trainer saw nothing")
    assert "Excluded: no reward" in await shown(browser, f"{address}/turns")
