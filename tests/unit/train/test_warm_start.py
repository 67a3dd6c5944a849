"""The warm-started model: its folder's name, its way from draft to cache, and what it says while it is missing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

from engine.core.errors import ConfigError, RunError
from engine.core.records import Demonstration
from engine.core.training_contracts import Model, WarmStartedModel
from engine.train.warm_start import Demonstrations, SupervisedFit, WarmStarted

FIT: dict[str, Any] = {
    "loss": "sampled",
    "prompt_weight": 0.1,
    "learning_rate": 1e-2,
    "final_rate": 0.1,
    "embedding_rate": 1.0,
    "betas": [0.9, 0.98],
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "gradient_clip": 1.0,
    "warmup_steps": 2,
    "epochs": 2,
    "batch_tokens": 128,
    "first_answer": 0.5,
    "rename": 1.0,
    "rename_below": 0.3,
    "balance": 0.0,
    "experts_implementation": "eager",
    "threads": 1,
}
SMALL: dict[str, Any] = {
    "name": "warm",
    "seed": 3,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 32,
    "experts": 4,
    "top_k": 2,
    "moe_intermediate": 32,
    "vocabulary": 512,
    "merges": 32,
    "phrases": 0.5,
    "min_frequency": 1,
    "separators": ["\n", '"'],
    "max_context": 256,
    "renderer": "qwen3",
    "dtype": "float32",
}
TEXTS = [
    f"<|im_start|>user\nThe line is:\nreturn {name}\nFix it.<|im_end|>\nreturn {name}<|im_end|>" for name in "abcd"
]


def made(fit: dict[str, Any] | None = None, right: float = 0.3, **values: Any) -> WarmStarted:
    return WarmStarted(
        **{**SMALL, **values},
        demonstrations=Demonstrations(samples_per_task=3, right_share=right),
        sft=SupervisedFit(**{**FIT, **(fit or {})}),
    )


def bound(**values: Any) -> WarmStarted:
    model = made(**values)
    model.bind("harness and tasks")
    return model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGO_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_a_model_that_can_be_warm_started() -> None:
    assert isinstance(made(), WarmStartedModel)
    model: Model = made()
    assert model.prepare is not None


def test_info_needs_the_fingerprint_of_the_demonstrations() -> None:
    with pytest.raises(RunError, match=r"model warm: info\(\) before bind\(\)"):
        made().info()


def test_everything_that_decides_the_weights_decides_the_folder() -> None:
    other = made()
    other.bind("another harness")
    paths = {
        bound().info().path,
        other.info().path,
        bound(top_k=1).info().path,
        bound(separators=["\n"]).info().path,
        bound(right=0.4).info().path,
        bound(fit={"epochs": 3}).info().path,
    }
    assert len(paths) == 6
    assert bound().info() == bound().info()


def test_a_missing_warm_start_says_how_to_make_it_and_prepare_makes_nothing(cache: Path) -> None:
    model = bound()
    (error,) = model.problems()
    assert str(error) == "model.name='warm': the warm start is not made yet; run the same command with job=prepare"
    said: list[str] = []
    asyncio.run(model.prepare(said.append))
    assert said and not cache.exists()


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = bound(top_k=5)
    assert [error.key for error in model.problems()] == ["model.top_k"]
    with pytest.raises(ConfigError, match=r"model\.top_k=5"):
        asyncio.run(model.prepare(lambda _: None))
    with pytest.raises(ConfigError, match=r"model\.vocabulary=512: 256 bytes, 300 merges"):
        bound(merges=300).draft(TEXTS, tmp_path / "draft")


def test_from_draft_to_cache(tmp_path: Path) -> None:
    model, folder = bound(), tmp_path / "cache" / "draft"
    info = model.draft(TEXTS, folder)
    assert info.path == folder and info.num_layers == 1
    drafted = (folder / "model.safetensors").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == json.loads((folder / "config.json").read_text())["vocab_size"]
    rows = []
    for text in TEXTS:
        ids = np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int32)
        sampled = np.zeros(len(ids), np.bool_)
        sampled[-2:] = True
        rows.append(Demonstration(token_ids=ids, sampled=sampled))
    metrics = model.fit(folder, rows, lambda _: None)
    assert metrics["updates"] >= 2 and (folder / "model.safetensors").read_bytes() != drafted
    path = model.settle(folder)
    assert path == model.info().path and model.problems() == [] and not folder.exists()
    loaded, loading = Qwen3MoeForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(loading.values()), loading
    assert loaded.config.tie_word_embeddings

    again = tmp_path / "cache" / "again"
    model.draft(TEXTS, again)
    assert (again / "model.safetensors").read_bytes() == drafted
    kept = (path / "model.safetensors").read_bytes()
    assert model.settle(again) == path and (path / "model.safetensors").read_bytes() == kept


def test_the_loss_setting_decides_the_weight_of_prompts(tmp_path: Path) -> None:
    """`sampled` ignores `prompt_weight`, `all` uses it: other weights come out."""
    outcomes = []
    for place, values in enumerate(({"loss": "sampled"}, {"loss": "sampled", "prompt_weight": 1.0}, {"loss": "all"})):
        model, folder = bound(fit=values), tmp_path / str(place)
        model.draft(TEXTS, folder)
        ids = np.arange(8, dtype=np.int32)
        model.fit(folder, [Demonstration(token_ids=ids, sampled=ids > 5)], lambda _: None)
        outcomes.append((folder / "model.safetensors").read_bytes())
    assert outcomes[0] == outcomes[1] != outcomes[2]
