"""The supervised fit: what is learnt, what is weighed, what is refused, the same bits twice."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.core.errors import AlignmentError, NoTrainableToken, RunError
from engine.core.records import Demonstration
from engine.train.sft import FitSettings, Renaming, evaluate, first_answer, fit, rate
from engine.train.tiny.tokenizer import CONTROL, MARKUP
from engine.train.tiny.weights import Shape, write_config, write_copying_weights

VOCABULARY = 64
IDS = {text: VOCABULARY - 9 + place for place, text in enumerate(CONTROL + MARKUP)}
SETTINGS = FitSettings(
    prompt_weight=0.0,
    learning_rate=1e-2,
    final_rate=0.1,
    embedding_rate=1.0,
    betas=(0.9, 0.98),
    adam_epsilon=1e-8,
    weight_decay=0.0,
    gradient_clip=1.0,
    warmup_steps=2,
    epochs=6,
    batch_tokens=64,
    first_answer=0.5,
    rename=0.5,
    rename_below=0.3,
    balance=0.0,
    experts="eager",
    threads=1,
)


def changed(**values: object) -> FitSettings:
    return FitSettings(**{**vars(SETTINGS), **values})


def demonstration(seed: int) -> Demonstration:
    """A prompt of five tokens, an answer 50 51, a result, an answer 52."""
    own = np.random.default_rng(seed).integers(0, 40, 4)
    ids = np.asarray([*own, 49, 50, 51, *own[:3], 48, 52], np.int32)
    sampled = np.zeros(len(ids), np.bool_)
    sampled[[5, 6, 11]] = True
    return Demonstration(token_ids=ids, sampled=sampled)


ROWS = tuple(demonstration(seed) for seed in range(12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return drafted(tmp_path / "model")


def drafted(path: Path) -> Path:
    path.mkdir()
    shape = Shape(
        hidden=32,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=32,
        experts=4,
        top_k=2,
        moe_intermediate=32,
        vocabulary=VOCABULARY,
        max_context=128,
    )
    write_config(path, shape, IDS, "float32")
    write_copying_weights(path, shape, 0)
    (path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {str(i): {} for i in IDS.values()}})
    )
    return path


def quiet(_: str) -> None:
    return None


def test_a_fit_learns_the_answers_and_keeps_the_folder_loadable(folder: Path) -> None:
    before = evaluate(folder, ROWS, "eager")
    metrics = fit(folder, ROWS, changed(epochs=30), 0, quiet)
    after = evaluate(folder, ROWS, "eager")
    assert after["sampled_loss"] < 0.1 < before["sampled_loss"]
    assert after["sampled_accuracy"] == 1.0
    assert metrics["sampled_loss"] == pytest.approx(after["sampled_loss"])
    assert after["sampled_perplexity"] == pytest.approx(np.exp(after["sampled_loss"]))
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]


def test_the_same_seed_gives_the_same_bits_and_another_other_ones(tmp_path: Path) -> None:
    weights = []
    for place, seed in enumerate((1, 1, 2)):
        folder = drafted(tmp_path / str(place))
        fit(folder, ROWS, SETTINGS, seed, quiet)
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_prompt_tokens_are_learnt_only_where_they_have_weight(tmp_path: Path) -> None:
    losses = []
    for place, weight in enumerate((0.0, 1.0)):
        folder = drafted(tmp_path / str(place))
        losses.append(fit(folder, ROWS, changed(prompt_weight=weight, rename=0.0, epochs=20), 0, quiet)["prompt_loss"])
    assert losses[1] < 3.0 < losses[0]


def test_padding_changes_nothing(folder: Path) -> None:
    short = Demonstration(token_ids=ROWS[0].token_ids[:7], sampled=ROWS[0].sampled[:7])
    alone = evaluate(folder, [short], "eager")["sampled_loss"] * 2
    other = evaluate(folder, [ROWS[1]], "eager")["sampled_loss"] * 3
    both = evaluate(folder, [short, ROWS[1]], "eager")["sampled_loss"] * 5
    assert both == pytest.approx(alone + other, abs=1e-5)


def test_renaming_is_consistent_within_a_row_and_leaves_frequent_and_control_tokens(folder: Path) -> None:
    renaming = Renaming(ROWS, changed(rename=1.0), VOCABULARY, list(IDS.values()))
    assert not set(renaming.rare.tolist()) & {48, 49, 50, 51, 52, *IDS.values()}
    assert {53, 54} <= set(renaming.rare.tolist())
    random = np.random.default_rng(0)
    seen = {renaming([ROWS[0]], random)[0].token_ids.tobytes() for _ in range(5)}
    assert len(seen) == 5
    (renamed,) = renaming([ROWS[0]], random)
    assert renamed.token_ids[[4, 5, 6, 10, 11]].tolist() == [49, 50, 51, 48, 52]
    assert renamed.token_ids[7:10].tolist() == renamed.token_ids[:3].tolist()
    plain = Renaming(ROWS, changed(rename=0.0), VOCABULARY, [])
    assert plain([ROWS[0]], random)[0].token_ids.tolist() == ROWS[0].token_ids.tolist()


def test_answers_to_the_same_prompt_are_renamed_alike() -> None:
    random = np.random.default_rng(0)
    answer, question = ROWS[0].token_ids.copy(), ROWS[0].token_ids.copy()
    answer[6], question[4] = 7, 8
    rows = [Demonstration(token_ids=ids, sampled=ROWS[0].sampled) for ids in (ROWS[0].token_ids, answer, question)]
    renaming = Renaming(ROWS, changed(rename=1.0), VOCABULARY, list(IDS.values()))
    first, same, other = renaming(rows, random)
    assert first.token_ids[:5].tolist() == same.token_ids[:5].tolist()
    assert first.token_ids[:4].tolist() != other.token_ids[:4].tolist()


def test_the_first_answer_ends_where_the_result_begins() -> None:
    assert first_answer(ROWS[0]).token_ids.tolist() == ROWS[0].token_ids[:7].tolist()
    short = first_answer(ROWS[0])
    assert len(first_answer(short).token_ids) == 7


def test_the_rate_warms_up_and_falls_to_its_floor() -> None:
    rates = [rate(SETTINGS, update, 12) for update in range(13)]
    assert rates[0] == pytest.approx(5e-3) and rates[1] == rates[2] == pytest.approx(1e-2)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[12] == pytest.approx(1e-3)


def test_the_routers_can_be_balanced(folder: Path) -> None:
    assert np.isfinite(fit(folder, ROWS, changed(balance=0.01, epochs=1), 0, quiet)["loss"])


def test_a_fit_that_leaves_the_finite_numbers_keeps_the_old_weights(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"update \d+ of \d+: loss .*lower model\.sft\.learning_rate"):
        fit(folder, ROWS, changed(learning_rate=1e30, gradient_clip=1e30, epochs=20, warmup_steps=0), 0, quiet)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("ids", "sampled", "error", "words"),
    [
        ([1, 2, 3], [False, True], AlignmentError, "2 flags for 3 tokens"),
        ([1, 2], [True, True], AlignmentError, "nothing precedes"),
        ([1, VOCABULARY], [False, True], AlignmentError, "the model has 64"),
        ([1, 2], [False, False], NoTrainableToken, "none of 2 tokens"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    folder: Path, ids: list[int], sampled: list[bool], error: type[Exception], words: str
) -> None:
    row = Demonstration(token_ids=np.asarray(ids, np.int32), sampled=np.asarray(sampled, np.bool_))
    with pytest.raises(error, match=f"demonstration 1: .*{words}"):
        fit(folder, [ROWS[0], row], SETTINGS, 0, quiet)


def test_no_demonstration_is_refused(folder: Path) -> None:
    with pytest.raises(NoTrainableToken, match="no demonstration"):
        fit(folder, [], SETTINGS, 0, quiet)


def test_threads_are_those_of_the_settings(folder: Path) -> None:
    fit(folder, ROWS, changed(epochs=1), 0, quiet)
    assert torch.get_num_threads() == 1
