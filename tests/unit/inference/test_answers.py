"""What vLLM answers is taken whole or refused with both lengths; each fault by itself."""

import base64
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.errors import AlignmentError, InferenceError
from engine.core.specs import ModelInfo
from engine.inference.answers import generation, prompt_logprobs
from engine.inference.token_stream import StreamedAnswer


def model(layers: int = 2, top_k: int = 2) -> ModelInfo:
    return ModelInfo(
        name="m",
        path=Path(),
        renderer="qwen3",
        max_context=64,
        num_layers=layers,
        top_k=top_k,
        dtype="float32",
    )


def routes(rows: int) -> NDArray[np.uint8]:
    return np.tile(np.array([[[0, 1], [3, 2]]], np.uint8), (rows, 1, 1))


def encoded(array: NDArray[Any]) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def answer(routed: NDArray[Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Three sampled tokens after a prompt of five."""
    content = [{"token": f"token_id:{token}", "logprob": -0.5 * token} for token in (1, 2, 3)]
    choice = {
        "token_ids": [1, 2, 3],
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "routed_experts": encoded(routes(7) if routed is None else routed),
        **changes,
    }
    counted = {"prompt_tokens": 5, "completion_tokens": len(choice["token_ids"])}
    return {"choices": [choice], "usage": counted | {"prompt_tokens_details": {"cached_tokens": 4}}}


def test_a_whole_answer() -> None:
    result = generation(answer(), model(), 5, 0, 9)
    assert result.token_ids.tolist() == [1, 2, 3] and result.token_ids.dtype == np.int32
    assert result.logprobs.tolist() == [-0.5, -1.0, -1.5] and result.logprobs.dtype == np.float32
    assert result.policy_versions.tolist() == [9, 9, 9]
    assert result.routed_experts is not None and result.routed_experts.shape == (7, 2, 2)
    assert (result.finish_reason, result.cached_tokens, result.routed_start) == ("stop", 4, 0)


def test_an_offset_takes_that_many_rows_fewer() -> None:
    result = generation(answer(routes(4)), model(), 5, 3, 0)
    assert result.routed_experts is not None and len(result.routed_experts) == 4 and result.routed_start == 3


@pytest.mark.parametrize(("rows", "start"), [(8, 0), (6, 0), (7, 3), (0, 0)])
def test_rows_that_do_not_fit_are_refused_with_both_shapes(rows: int, start: int) -> None:
    wanted = rf"shape \({rows}, 2, 2\) where \({7 - start}, 2, 2\) are due"
    with pytest.raises(AlignmentError, match=wanted):
        generation(answer(routes(rows)), model(), 5, start, 0)


def test_routing_of_another_model_or_never_captured_is_refused() -> None:
    with pytest.raises(AlignmentError, match=r"where \(7, 3, 2\) are due"):
        generation(answer(), model(layers=3), 5, 0, 0)
    with pytest.raises(AlignmentError, match="never captured"):
        generation(answer(np.zeros((7, 2, 2), np.uint8)), model(), 5, 0, 0)
    with pytest.raises(AlignmentError, match="int64"):
        generation(answer(routes(7).astype(np.int64)), model(), 5, 0, 0)
    with pytest.raises(AlignmentError, match="cannot be read"):
        generation(answer(routed_experts="no base64"), model(), 5, 0, 0)
    with pytest.raises(AlignmentError, match="no routed experts where 7 rows"):
        generation(answer(routed_experts=None), model(), 5, 0, 0)


def test_a_dense_model_has_no_routing() -> None:
    assert generation(answer(routed_experts=None), model(layers=0, top_k=0), 5, 0, 0).routed_experts is None


def test_logprobs_fit_the_ids_one_by_one() -> None:
    short = {"content": [{"token": "token_id:1", "logprob": -1.0}]}
    with pytest.raises(AlignmentError, match="1 log-probabilities for 3 sampled tokens"):
        generation(answer(logprobs=short), model(), 5, 0, 0)
    for token, value in (("token_id:7", -1.0), ("token_id:2", -9999.0), ("token_id:2", float("nan"))):
        whole = answer()
        whole["choices"][0]["logprobs"]["content"][1] = {"token": token, "logprob": value}
        with pytest.raises(AlignmentError, match=r"sampled token 1 \(id 2\)"):
            generation(whole, model(), 5, 0, 0)


@given(st.lists(st.integers(0, 600), max_size=6))
def test_a_stream_that_is_cut_anywhere_is_the_same_answer(cuts: list[int]) -> None:
    whole = answer(routed_experts=None)
    (choice,) = whole["choices"]
    steps = [
        {"token_ids": [token], "logprobs": {"content": choice["logprobs"]["content"][at : at + 1]}}
        for at, token in enumerate(choice["token_ids"])
    ]
    steps[-1]["finish_reason"] = "stop"
    told = [*({"choices": [step]} for step in steps), {"choices": [], "usage": whole["usage"]}]
    raw = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in told) + b"data: [DONE]\n\n"
    taken: list[int] = []
    stream = StreamedAnswer(taken.extend)
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    for start, end in pairwise(places):
        stream.feed(raw[start:end])
    dense = model(layers=0, top_k=0)
    made, due = generation(stream.whole(), dense, 5, 0, 0), generation(whole, dense, 5, 0, 0)
    assert taken == made.token_ids.tolist() == due.token_ids.tolist()
    assert made.logprobs.tolist() == due.logprobs.tolist() and made.cached_tokens == due.cached_tokens


def test_an_abort_without_tokens_is_empty() -> None:
    empty = answer(token_ids=[], logprobs={"content": []}, finish_reason="abort", routed_experts=None)
    result = generation(empty, model(), 5, 0, 0)
    assert len(result.token_ids) == 0 and result.finish_reason == "abort"


def test_fewer_ids_than_were_sampled_are_refused() -> None:
    """vllm#27482: a token that is left out with its log-probability shows in the engine's own count alone."""
    short = answer(token_ids=[1, 2], logprobs={"content": answer()["choices"][0]["logprobs"]["content"][:2]})
    short["usage"]["completion_tokens"] = 3
    with pytest.raises(AlignmentError, match="counted 3 sampled tokens and answered 2"):
        generation(short, model(), 5, 0, 0)


def test_another_prompt_length_or_finish_reason_is_refused() -> None:
    with pytest.raises(AlignmentError, match="5 prompt tokens where 6 were sent"):
        generation(answer(), model(), 6, 0, 0)
    with pytest.raises(InferenceError, match="'error'"):
        generation(answer(finish_reason="error"), model(), 5, 0, 0)


def test_prompt_logprobs_take_the_prompts_own_tokens() -> None:
    entries = [None, {"7": {"logprob": -1.5}, "1": {"logprob": -0.1}}, {"8": {"logprob": -2.0}}]
    assert prompt_logprobs({"prompt_logprobs": entries}, np.array([6, 7, 8], np.int32)).tolist() == [-1.5, -2.0]
    with pytest.raises(AlignmentError, match="3 prompt log-probabilities for 2 tokens"):
        prompt_logprobs({"prompt_logprobs": entries}, np.array([6, 7], np.int32))
