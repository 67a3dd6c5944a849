"""The scripted engine keeps the contract of a token engine, and plays its script exactly."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.core.errors import ConfigError, InferenceError
from engine.core.records import Generation
from engine.core.specs import ModelInfo
from engine.inference.script import Call, Turn
from engine.inference.scripted import ScriptedEngine
from engine.train.models import TinyQwen3Moe

SCRIPT: dict[str, Any] = {
    "*-sqlparse-*": [
        {"text": "I look.", "calls": [{"name": "terminal", "arguments": {"command": "ls 'a b' ü\n"}}]},
        {"calls": [{"name": "view", "arguments": {}}, {"name": "view", "arguments": {"n": [1, 2]}}]},
        {"text": "cut off", "stop": False},
    ],
    "*": [{"text": "another"}],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelInfo]:
    sizes: dict[str, Any] = {
        "hidden": 32,
        "layers": 3,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 32,
        "experts": 8,
        "top_k": 2,
        "moe_intermediate": 32,
        "vocabulary": 1024,
        "corpus_documents": 120,
        "max_context": 512,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGO_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        tiny = TinyQwen3Moe(name="script", seed=0, renderer="qwen3", dtype="float32", **sizes)
        asyncio.run(tiny.prepare(lambda _: None))
        yield tiny.info()


async def started(
    model: ModelInfo, script: Any = SCRIPT, kind: type[ScriptedEngine] = ScriptedEngine
) -> ScriptedEngine:
    engine = kind(script=script, final_text="That is all.", seed=0, probe=None)
    assert engine.problems() == []
    await engine.start(model, Path())
    return engine


def prompt_of(length: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 1000, length, np.int32)


async def ask(engine: ScriptedEngine, prompt: NDArray[np.int32], **changes: Any) -> Generation:
    options: dict[str, Any] = {
        "max_tokens": 200,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "stop_token_ids": [1017, 1015],
        "routed_start": 0,
        "session": "e0-sqlparse-s0-a0",
    }
    return await engine.generate(prompt, **{**options, **changes})


def text_of(model: ModelInfo, result: Generation) -> str:
    decoded: str = Tokenizer.from_file(str(model.path / "tokenizer.json")).decode(
        result.token_ids.tolist(), skip_special_tokens=False
    )
    return decoded


async def test_tokens_are_handed_over_in_order_as_they_come(model: ModelInfo) -> None:
    engine = await started(model)
    portions: list[list[int]] = []
    result = await ask(engine, prompt_of(30), sink=lambda ids: portions.append(list(ids)))
    assert [token for portion in portions for token in portion] == result.token_ids.tolist()
    assert len(portions) > 1
    cut = await ask(engine, prompt_of(30), sink=portions.append, max_tokens=3)
    assert portions[-1] == cut.token_ids.tolist() and len(cut.token_ids) == 3


async def test_the_turns_are_played_in_order_then_the_final_text(model: ModelInfo) -> None:
    engine = await started(model)
    first, second, third, fourth = [await ask(engine, prompt_of(20 + n)) for n in range(4)]
    call = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls \'a b\' ü\\n"}}\n</tool_call>'
    assert text_of(model, first) == f"I look.\n{call}<|im_end|>"
    assert text_of(model, second) == (
        '<tool_call>\n{"name": "view", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "view", "arguments": {"n": [1, 2]}}\n</tool_call><|im_end|>'
    )
    assert text_of(model, third) == "cut off" and third.finish_reason == "length"
    assert text_of(model, fourth) == "That is all.<|im_end|>" and fourth.finish_reason == "stop"
    other = await ask(engine, prompt_of(20), session="e0-toolz-s0-a0")
    assert text_of(model, other) == "another<|im_end|>"


async def test_the_renderer_reads_what_the_engine_wrote(model: ModelInfo) -> None:
    from renderers import Qwen3Renderer, Qwen3RendererConfig
    from transformers import AutoTokenizer

    renderer = Qwen3Renderer(AutoTokenizer.from_pretrained(model.path), Qwen3RendererConfig(enable_thinking=False))
    prompt = renderer.render_ids([{"role": "user", "content": "go"}], add_generation_prompt=True)
    engine = await started(model)
    result = await ask(engine, np.asarray(prompt, np.int32))
    parsed = renderer.parse_response(result.token_ids.tolist(), prompt_ids=prompt)
    assert parsed.content == "I look."
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("terminal", {"command": "ls 'a b' ü\n"})]


async def test_ids_logprobs_versions_and_routes_have_one_length(model: ModelInfo, tmp_path: Path) -> None:
    engine = await started(model)
    for start in (0, 13, 30):
        result = await ask(engine, prompt_of(30, seed=start), routed_start=start)
        count = len(result.token_ids)
        assert result.logprobs.shape == result.policy_versions.shape == (count,)
        assert (result.logprobs < 0).all() and np.isfinite(result.logprobs).all()
        assert result.routed_experts is not None and result.routed_experts.dtype == np.uint8
        assert result.routed_experts.shape == (30 + count - 1 - start, 3, 2)
        assert result.routed_experts.max() < 8
        assert (result.routed_experts[..., 0] != result.routed_experts[..., 1]).all()
    await engine.update_weights(model.path / "model.safetensors", 4)
    assert set((await ask(engine, prompt_of(9))).policy_versions.tolist()) == {4}
    with pytest.raises(InferenceError, match="no weights"):
        await engine.update_weights(tmp_path / "none", 5)


async def test_a_resent_prompt_is_a_retry_and_a_longer_one_keeps_the_rows_of_its_prefix(model: ModelInfo) -> None:
    engine = await started(model)
    prompt = prompt_of(40)
    first, again = await ask(engine, prompt), await ask(engine, prompt)
    assert again.token_ids.tolist() == first.token_ids.tolist() and again.cached_tokens == 40
    assert again.logprobs.tolist() == first.logprobs.tolist()
    assert first.routed_experts is not None and again.routed_experts is not None
    assert (again.routed_experts == first.routed_experts).all()
    longer = np.concatenate([prompt, first.token_ids, prompt_of(5, seed=9)])
    second = await ask(engine, longer, routed_start=0)
    assert second.cached_tokens == 40 and text_of(model, second) != text_of(model, first)
    assert second.routed_experts is not None
    assert (second.routed_experts[: len(first.routed_experts)] == first.routed_experts).all()
    usage = np.bincount(second.routed_experts.ravel(), minlength=8)
    assert (usage > 0).all()


async def test_the_token_limit_cuts_and_says_so(model: ModelInfo) -> None:
    engine = await started(model)
    result = await ask(engine, prompt_of(20), max_tokens=5)
    assert len(result.token_ids) == 5 and result.finish_reason == "length"


async def test_a_subclass_can_answer_to_what_it_sees(model: ModelInfo) -> None:
    class Echo(ScriptedEngine):
        def turn(self, session: str, index: int, prompt_ids: NDArray[np.int32]) -> Turn:
            return Turn(calls=(Call(name="echo", arguments={"n": index, "length": len(prompt_ids)}),))

    engine = await started(model, script={}, kind=Echo)
    assert '{"n": 0, "length": 7}' in text_of(model, await ask(engine, prompt_of(7)))
    assert '{"n": 1, "length": 8}' in text_of(model, await ask(engine, prompt_of(8)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"routed_start": 21}, "routed_start=21"),
        ({"stop_token_ids": [3]}, "not in"),
    ],
)
async def test_it_refuses_what_a_real_engine_refuses(model: ModelInfo, change: dict[str, Any], said: str) -> None:
    engine = await started(model)
    with pytest.raises(InferenceError, match=said):
        await ask(engine, prompt_of(20), **change)
    with pytest.raises(InferenceError, match="context of 512"):
        await ask(engine, prompt_of(512))
    with pytest.raises(InferenceError, match="no weights"):
        await engine.score(prompt_of(5))
    await engine.stop()
    await engine.stop()
    with pytest.raises(InferenceError, match="not running"):
        await ask(engine, prompt_of(5))


async def test_a_script_can_stand_in_a_file(model: ModelInfo, tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text('"*": [{text: From a file.}]\n')
    engine = await started(model, script=str(file))
    assert text_of(model, await ask(engine, prompt_of(5))) == "From a file.<|im_end|>"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("/nowhere.yaml", "cannot be read"),
        ({"*": {"text": "x"}}, "'\\*': not a list"),
        ({"*": ["x"]}, "turn 0: not a mapping"),
        ({"*": [{"text": "x"}, {"txt": "x"}]}, "turn 1: unknown key 'txt', known are text, calls, stop"),
        ({"*": [{"stop": "no"}]}, "stop is no bool"),
        ({"*": [{"calls": [{"name": "x"}]}]}, "a call has a name and a mapping"),
    ],
)
def test_a_wrong_script_is_named(script: Any, said: str) -> None:
    engine = ScriptedEngine(script=script, final_text="", seed=0, probe=None)
    (error,) = engine.problems()
    assert error.key == "inference.script"
    with pytest.raises(ConfigError, match=said):
        raise error
