"""The tiny model: same bytes twice, whole or not at all, loadable, and exact with the Qwen3 renderer."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

from engine.core.errors import ConfigError
from engine.tokens.tokenizer import CheckpointTokenizer
from engine.train.models import LocalCheckpoint, TinyQwen3Moe
from engine.train.policy import Policy, PolicySettings
from engine.train.tiny.corpus import documents

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "hidden": 32,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 32,
    "experts": 4,
    "top_k": 2,
    "moe_intermediate": 32,
    "vocabulary": 1024,
    "corpus_documents": 120,
    "max_context": 2048,
    "renderer": "qwen3",
    "dtype": "float32",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs in <dir>. Ünïcode: 数 🐍\n\ttab"},
    {"role": "user", "content": "def f(x):\n        return x[1:]  # broken\r\n"},
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGO_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        model = TinyQwen3Moe(**SMALL)
        asyncio.run(model.prepare(lambda _: None))
        yield model.info().path


def test_same_seed_gives_the_same_bytes_and_another_seed_other_ones(folder: Path, cache: Path) -> None:
    for seed, same in ((3, True), (4, False)):
        model = TinyQwen3Moe(**{**SMALL, "seed": seed})
        asyncio.run(model.prepare(lambda _: None))
        assert (model.info().path.name == folder.name) is same
        names = sorted(file.name for file in folder.iterdir())
        assert names == sorted(file.name for file in model.info().path.iterdir())
        for name in ("model.safetensors", "tokenizer.json"):
            assert ((model.info().path / name).read_bytes() == (folder / name).read_bytes()) is same


def test_every_setting_has_a_folder_of_its_own() -> None:
    first = TinyQwen3Moe(**SMALL).info().path
    for key, value in (("top_k", 1), ("max_context", 4096), ("corpus_documents", 121), ("moe_intermediate", 64)):
        assert TinyQwen3Moe(**{**SMALL, key: value}).info().path != first


def test_an_unbuilt_model_says_how_to_build_it(cache: Path) -> None:
    (error,) = TinyQwen3Moe(**SMALL).problems()
    assert str(error) == "model.name='small': not built yet; run the same command with job=prepare"


def test_a_failed_build_leaves_nothing_and_names_the_setting(cache: Path) -> None:
    model = TinyQwen3Moe(**{**SMALL, "vocabulary": 60000})
    with pytest.raises(ConfigError, match=r"model\.vocabulary=60000: the corpus fills \d+ of 60000 tokens"):
        asyncio.run(model.prepare(lambda _: None))
    assert list((cache / "models").iterdir()) == []


@pytest.mark.parametrize(("key", "value"), [("top_k", 5), ("heads", 3), ("hidden", 40), ("moe_intermediate", 48)])
def test_sizes_that_do_not_fit_are_refused_before_anything_is_built(cache: Path, key: str, value: int) -> None:
    changed = {**SMALL, key: value, **({"kv_heads": 2} if key == "heads" else {})}
    model = TinyQwen3Moe(**changed)
    assert model.problems()
    with pytest.raises(ConfigError):
        asyncio.run(model.prepare(lambda _: None))
    assert not cache.exists()


def test_transformers_loads_it_without_a_missing_or_surplus_tensor(folder: Path) -> None:
    model, loading = Qwen3MoeForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert model.config.num_experts_per_tok == SMALL["top_k"]
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_any_text_survives_the_tokeniser(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [
        *documents(99, 30),
        "\x00\x7f\r\n\r\n\t é 数 🐍‍🔬 \u2028 end  ",
        "",
        "a_b __init__ 1234 ... --- \n\n\n    x",
    ]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert max(ids, default=0) < SMALL["vocabulary"]


def test_control_tokens_are_one_id_each_and_the_turn_end_is_eos(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "<|endoftext|><|im_start|><|im_end|><tool_call></tool_call><tool_response></tool_response><think></think>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == list(range(SMALL["vocabulary"] - 9, SMALL["vocabulary"]))
    assert tokenizer.eos_token_id == ids[2]
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == ids[2]


def test_render_parse_and_bridge_are_exact_over_three_turns(folder: Path) -> None:
    from renderers import Qwen3Renderer, Qwen3RendererConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = Qwen3Renderer(tokenizer, Qwen3RendererConfig(enable_thinking=False))
    messages = list(MESSAGES)
    prompt = renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True)
    for turn in range(3):
        call = json.dumps({"name": "terminal", "arguments": {"command": f"ls -la {turn}"}})
        text = f"I look.\n<tool_call>\n{call}\n</tool_call><|im_end|>"
        sampled = tokenizer.encode(text, add_special_tokens=False)
        parsed = renderer.parse_response(sampled, tools=TOOLS, prompt_ids=prompt)
        assert parsed.content == "I look."
        assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
            ("terminal", {"command": f"ls -la {turn}"})
        ]
        function = {"name": "terminal", "arguments": {"command": f"ls -la {turn}"}}
        answer = {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": function}]}
        result = {"role": "tool", "content": f"total {turn}\n", "name": "terminal"}
        bridged = renderer.bridge_to_next_turn(prompt, sampled, [result], tools=TOOLS)
        assert bridged is not None
        assert bridged.token_ids[: len(prompt) + len(sampled)] == prompt + sampled
        messages += [answer, result]
        rendered = renderer.render_ids(messages, tools=TOOLS, add_generation_prompt=True)
        assert bridged.token_ids == rendered
        template = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
        assert template == tokenizer.decode(rendered)
        prompt = bridged.token_ids


def test_a_local_checkpoint_names_what_is_missing(tmp_path: Path, folder: Path) -> None:
    def made(path: Path) -> LocalCheckpoint:
        return LocalCheckpoint(name="m", path=str(path), max_context=2048, renderer="qwen3", dtype="float32")

    assert made(folder).problems() == []
    info = made(folder).info()
    assert (info.num_layers, info.top_k, info.path) == (2, 2, folder)
    (error,) = made(tmp_path / "nowhere").problems()
    assert error.key == "model.path" and "nowhere" in str(error)
    (tmp_path / "config.json").write_text("{}")
    (error,) = made(tmp_path).problems()
    assert "tokenizer.json, *.safetensors" in str(error)
    with pytest.raises(ConfigError, match="lacks"):
        asyncio.run(made(tmp_path).prepare(lambda _: None))


CUT = "Error while deserializing header: incomplete metadata, file not fully covered"


@pytest.mark.parametrize(
    ("damage", "problem", "way_out"),
    [
        (
            lambda folder: os.truncate(folder / "model.safetensors", 100_000),
            f"model.safetensors is no whole safetensors file ({CUT})",
            "download it again, or set model.path to a whole checkpoint",
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
            ),
            "the folder lacks 1 of 2 files of weights (model-2.safetensors)",
            "download it again, or set model.path to a whole checkpoint",
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("{"),
            "model.safetensors.index.json cannot be read",
            "download it again, or set model.path to a whole checkpoint",
        ),
        (
            lambda folder: (folder / "config.json").write_text("{}"),
            "no readable config.json of a model there (KeyError: 'model_type')",
            "point it at a Hugging Face checkpoint folder",
        ),
        (
            lambda folder: (folder / "config.json").write_text("[]"),
            "no readable config.json of a model there (TypeError: list indices must be integers or slices, not str)",
            "point it at a Hugging Face checkpoint folder",
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_before_anything_starts(
    tmp_path: Path, folder: Path, damage: Callable[[Path], object], problem: str, way_out: str
) -> None:
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    made = LocalCheckpoint(name="m", path=str(place), max_context=2048, renderer="qwen3", dtype="float32")
    assert made.problems() == []
    damage(place)
    assert [str(error) for error in made.problems()] == [f"model.path={str(place)!r}: {problem}; {way_out}"]


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("config.json", '"hidden_size": 32', '"hidden_size": 64', "RuntimeError: You set `ignore_mismatched_sizes`"),
        (
            "config.json",
            '"qwen3_moe"',
            '"qwen9_moe"',
            "ValueError: The checkpoint you are trying to load has model type",
        ),
    ],
)
def test_a_checkpoint_that_is_no_model_is_a_wrong_configuration(
    tmp_path: Path, folder: Path, file: str, old: str, new: str, problem: str
) -> None:
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    text = (place / file).read_text()
    assert old in text
    (place / file).write_text(text.replace(old, new))
    made = LocalCheckpoint(name="m", path=str(place), max_context=2048, renderer="qwen3", dtype="float32")
    assert made.problems() == []
    settings = PolicySettings(
        device="cpu", dtype="float32", experts="eager", gradient_checkpointing=False, replay=False
    )
    with pytest.raises(ConfigError) as caught:
        Policy(made.info(), settings)
    assert str(caught.value).startswith(f"model.path={str(place)!r}: transformers cannot load it ({problem}")
    assert str(caught.value).endswith(
        "; point it to a whole checkpoint of a causal language model that this version of transformers knows"
    )


def test_a_damaged_tokenizer_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    line = r"^model\.path='.*': its tokenizer\.json cannot be read \(Model missing.*\); point it to a whole checkpoint"
    with pytest.raises(ConfigError, match=line):
        CheckpointTokenizer(tmp_path)


def test_routed_layers_are_counted_from_the_text_configuration(tmp_path: Path) -> None:
    text = {"num_experts_per_tok": 8, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": text}))
    info = LocalCheckpoint(name="m", path=str(tmp_path), max_context=9, renderer="qwen3.5", dtype="bfloat16").info()
    assert (info.num_layers, info.top_k) == (2, 8)
