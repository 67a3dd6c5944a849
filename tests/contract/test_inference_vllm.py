"""The real vLLM: its tokens, log-probabilities and routing against transformers, weight updates, death and stop."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeForCausalLM

from engine.core.errors import InferenceError, RunError, WeightSyncError
from engine.core.records import Generation
from engine.core.specs import ModelInfo
from engine.inference.probe import WeightProbe
from engine.inference.vllm_http import VllmServer
from engine.train.models import TinyQwen3Moe

ROOT = Path(__file__).parents[2]
EOS = 1017
SIZES: dict[str, Any] = {
    "name": "contract",
    "seed": 1,
    "hidden": 64,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 32,
    "experts": 8,
    "top_k": 2,
    "moe_intermediate": 32,
    "vocabulary": 1024,
    "corpus_documents": 120,
    "max_context": 6144,
    "renderer": "qwen3",
    "dtype": "float32",
}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def server(**changes: Any) -> VllmServer:
    """The shipped laptop configuration, with changes."""
    shipped = OmegaConf.load(ROOT / "configs/inference/vllm.yaml")
    run = OmegaConf.create({"model": SIZES, "inference": shipped})
    options = OmegaConf.to_container(run, resolve=True)["inference"]
    del options["_target_"]
    del options["probe"]["_target_"]
    options["probe"] = WeightProbe(**options["probe"])
    return VllmServer(**{**options, **changes})


class Reference:
    """transformers in float32 on the same weights."""

    def __init__(self, model: ModelInfo) -> None:
        torch.set_num_threads(1)
        self.model = Qwen3MoeForCausalLM.from_pretrained(model.path).eval()
        self.routes: list[torch.Tensor] = []
        for layer in self.model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda module, args, output: self.routes.append(output[2]))

    @torch.no_grad()
    def logits(self, ids: Sequence[int] | NDArray[np.int32]) -> torch.Tensor:
        """float32 [n, vocabulary]; the routing of the pass stays in `routes`."""
        self.routes.clear()
        logits: torch.Tensor = self.model(torch.as_tensor(np.asarray(ids, np.int64))[None]).logits[0]
        return logits

    def score(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        logps = torch.log_softmax(self.logits(ids), -1)
        following = torch.as_tensor(ids[1:].astype(np.int64))[:, None]
        picked: NDArray[np.float32] = logps[:-1].gather(1, following)[:, 0].numpy()
        return picked

    def perturb(self, path: Path, group: Callable[[str], bool], seed: int) -> None:
        """Change every tensor that `group` selects, here and in a file at `path` (Hugging Face names)."""
        tensors = load_file(path)
        generator = torch.Generator().manual_seed(seed)
        chosen = [name for name in tensors if group(name)]
        assert chosen
        for name in chosen:
            tensors[name] += 0.02 * torch.randn(tensors[name].shape, generator=generator)
        save_file(tensors, path)
        folder = path.with_suffix("")
        shutil.copytree(self.model.name_or_path, folder)
        shutil.copy(path, folder / "model.safetensors")
        fresh = Qwen3MoeForCausalLM.from_pretrained(folder)
        missing = self.model.load_state_dict(fresh.state_dict())
        assert not missing.missing_keys


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelInfo]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGO_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        tiny = TinyQwen3Moe(**SIZES)
        asyncio.run(tiny.prepare(lambda _: None))
        yield tiny.info()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm(model: ModelInfo, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    engine = server()
    await engine.start(model, tmp_path_factory.mktemp("vllm"))
    yield engine
    await engine.stop()


def prompt_of(length: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, EOS - 2, length, np.int32)


async def sample(engine: VllmServer, prompt: NDArray[np.int32], **changes: Any) -> Generation:
    options: dict[str, Any] = {
        "max_tokens": 24,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 5,
        "stop_token_ids": [EOS],
        "routed_start": 0,
        "session": "test",
    }
    return await engine.generate(prompt, **{**options, **changes})


def nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Log-probabilities of the sampling distribution: temperature, then the smallest set of mass `top_p`."""
    ordered, index = torch.sort(torch.log_softmax(logits / temperature, -1))
    cut = ordered.exp().cumsum(-1) <= 1 - top_p
    cut[..., -1] = False
    kept = torch.full_like(logits, -torch.inf).scatter(-1, index, ordered.masked_fill(cut, -torch.inf))
    return torch.log_softmax(kept, -1)


async def test_sampled_ids_carry_the_sampling_distributions_logprobs(vllm: VllmServer, model: ModelInfo) -> None:
    prompt = prompt_of(300)
    result = await sample(vllm, prompt)
    assert result.finish_reason == "length" and len(result.token_ids) == 24
    assert result.policy_versions.tolist() == [0] * 24
    logits = Reference(model).logits([*prompt, *result.token_ids])[len(prompt) - 1 : -1]
    expected = nucleus(logits, 0.7, 0.9)[torch.arange(24), torch.as_tensor(result.token_ids.astype(np.int64))]
    assert np.abs(expected.numpy() - result.logprobs).max() <= 1e-4
    raw = torch.log_softmax(logits, -1)[torch.arange(24), torch.as_tensor(result.token_ids.astype(np.int64))]
    assert np.abs(raw.numpy() - result.logprobs).min() > 0.01, "these are not the raw log-probabilities"


async def test_routing_is_that_of_transformers_also_from_the_prefix_cache_and_from_an_offset(
    vllm: VllmServer, model: ModelInfo
) -> None:
    prompt = prompt_of(300, seed=1)
    first = await sample(vllm, prompt)
    reference = Reference(model)
    reference.logits([*prompt, *first.token_ids])
    expected = torch.stack(reference.routes, 1).numpy()[:-1]
    assert first.cached_tokens == 0
    assert first.routed_experts is not None and first.routed_experts.shape == (300 + 24 - 1, 2, 2)
    assert (first.routed_experts == expected).all()
    again = await sample(vllm, prompt)
    assert again.cached_tokens > 0
    assert again.token_ids.tolist() == first.token_ids.tolist()
    assert (again.routed_experts == expected).all()
    for start in (1, 137, 300):
        tail = await sample(vllm, prompt, routed_start=start)
        assert tail.routed_start == start and (tail.routed_experts == expected[start:]).all()


async def test_a_streamed_generation_is_the_unstreamed_one(vllm: VllmServer) -> None:
    """Ids, log-probabilities, routing and counts; the ids as they come."""
    prompt = prompt_of(200, seed=11)
    await sample(vllm, prompt)
    whole = await sample(vllm, prompt, routed_start=137)
    portions: list[list[int]] = []
    streamed = await sample(vllm, prompt, routed_start=137, sink=lambda ids: portions.append(list(ids)))
    assert (
        [token for portion in portions for token in portion] == streamed.token_ids.tolist() == whole.token_ids.tolist()
    )
    assert len(portions) > 12, "they come while it is sampled"
    assert np.abs(streamed.logprobs - whole.logprobs).max() <= 1e-5
    assert streamed.routed_experts is not None and (streamed.routed_experts == whole.routed_experts).all()
    assert (streamed.finish_reason, streamed.cached_tokens) == (whole.finish_reason, whole.cached_tokens)
    stop = int(whole.token_ids[5])
    stopped = await sample(vllm, prompt, stop_token_ids=[stop], sink=portions.append)
    assert stopped.finish_reason == "stop" and stopped.token_ids[-1] == stop
    assert stopped.routed_experts is not None and len(stopped.routed_experts) == 200 + len(stopped.token_ids) - 1


async def test_the_stop_token_is_kept_and_other_special_tokens_do_not_stop(vllm: VllmServer) -> None:
    prompt = prompt_of(40)
    free = await sample(vllm, prompt, temperature=1.0, top_p=1.0, stop_token_ids=[])
    stop = int(free.token_ids[7])
    first = free.token_ids.tolist().index(stop)
    stopped = await sample(vllm, prompt, temperature=1.0, top_p=1.0, stop_token_ids=[stop])
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert stopped.routed_experts is not None and len(stopped.routed_experts) == 40 + first


async def test_long_prompts_with_seeds_side_by_side_are_sampled_as_alone(vllm: VllmServer) -> None:
    """vLLM 0.30 dies on a CPU when it prefills a seeded prompt in parts; nor may batching change a seed's sample."""
    prompts = [prompt_of(length, seed=length) for length in (5000, 4000, 3000, 30)]
    together = await asyncio.gather(*(sample(vllm, prompt, max_tokens=8) for prompt in prompts))
    for prompt, result in zip(prompts, together, strict=True):
        assert result.routed_experts is not None and len(result.routed_experts) == len(prompt) + 7
        assert (await sample(vllm, prompt, max_tokens=8)).token_ids.tolist() == result.token_ids.tolist()


async def test_score_is_the_plain_logprob(vllm: VllmServer, model: ModelInfo) -> None:
    ids = prompt_of(200, seed=2)
    assert np.abs(await vllm.score(ids) - Reference(model).score(ids)).max() <= 1e-4


@pytest.mark.parametrize(
    ("change", "said"),
    [({"max_tokens": 0}, "max_tokens"), ({"routed_start": 50}, "routed_experts_prompt_start")],
)
async def test_what_vllm_refuses_is_an_inference_error_in_its_words(
    vllm: VllmServer, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InferenceError, match=said):
        await sample(vllm, prompt_of(40), **change)
    with pytest.raises(InferenceError, match="maximum model length"):
        await sample(vllm, prompt_of(7000))


async def test_the_probes_tokens_pass_through_every_expert(vllm: VllmServer, model: ModelInfo) -> None:
    reference = Reference(model)
    seen: list[set[int]] = [set(), set()]
    for row in vllm.probe.tokens(model):
        reference.score(row)
        for layer, routes in enumerate(reference.routes):
            seen[layer] |= set(routes.flatten().tolist())
    assert seen == [set(range(8))] * 2


GROUPS: dict[str, Callable[[str], bool]] = {
    "embeddings": lambda name: "embed_tokens" in name,
    "attention": lambda name: "_proj" in name and "self_attn" in name,
    "query_key_norms": lambda name: "q_norm" in name or "k_norm" in name,
    "layer_norms": lambda name: "layernorm" in name or name == "model.norm.weight",
    "router": lambda name: "mlp.gate." in name,
    "expert_gate_up": lambda name: "experts" in name and ("gate_proj" in name or "up_proj" in name),
    "expert_down": lambda name: "experts" in name and "down_proj" in name,
}


async def test_the_groups_are_all_the_parameters(model: ModelInfo) -> None:
    for name in load_file(model.path / "model.safetensors"):
        assert sum(group(name) for group in GROUPS.values()) == 1, name


async def test_each_parameter_group_is_updated_and_no_cached_token_survives(
    vllm: VllmServer, model: ModelInfo, tmp_path: Path
) -> None:
    reference, prompt = Reference(model), prompt_of(300, seed=3)
    await sample(vllm, prompt)
    assert (await sample(vllm, prompt)).cached_tokens > 0
    previous = model.path / "model.safetensors"
    for version, (name, group) in enumerate(GROUPS.items(), start=1):
        weights = tmp_path / f"{name}.safetensors"
        shutil.copy(previous, weights)
        stale = reference.score(prompt)
        reference.perturb(weights, group, seed=version)
        assert np.abs(reference.score(prompt) - stale).max() > 1e-3, f"{name} changes nothing"
        await vllm.update_weights(weights, version)
        figures = await vllm.probe.check(model, vllm.score, reference.score)
        assert figures["probe/max_abs_dlogp"] <= 1e-4, name
        result = await sample(vllm, prompt)
        assert result.cached_tokens == 0, "a prefix of the older weights was used"
        assert set(result.policy_versions.tolist()) == {version}
        reference.logits([*prompt, *result.token_ids])
        assert (result.routed_experts == torch.stack(reference.routes, 1).numpy()[:-1]).all()
        previous = weights
    await vllm.update_weights(model.path / "model.safetensors", 0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def test_a_generation_in_flight_ends_before_the_update_and_the_next_one_waits_for_it(
    vllm: VllmServer, model: ModelInfo, tmp_path: Path
) -> None:
    weights = tmp_path / "new.safetensors"
    shutil.copy(model.path / "model.safetensors", weights)
    Reference(model).perturb(weights, GROUPS["embeddings"], seed=9)
    prompt = prompt_of(64, seed=4)
    long = asyncio.create_task(sample(vllm, prompt, max_tokens=400, stop_token_ids=[]))
    await until(lambda: vllm._gate._sampling == 1)
    update = asyncio.create_task(vllm.update_weights(weights, 8))
    await until(lambda: vllm._gate._writers == 1)
    late = asyncio.create_task(sample(vllm, prompt))
    before, _, after = await asyncio.gather(long, update, late)
    assert set(before.policy_versions.tolist()) == {0} and len(before.token_ids) == 400
    assert set(after.policy_versions.tolist()) == {8} and after.cached_tokens == 0
    await vllm.update_weights(model.path / "model.safetensors", 0)


async def test_a_file_that_is_not_the_model_is_refused_and_sampling_goes_on(
    vllm: VllmServer, model: ModelInfo, tmp_path: Path
) -> None:
    before = set((await sample(vllm, prompt_of(20))).policy_versions.tolist())
    tensors = load_file(model.path / "model.safetensors")
    gone = tensors.pop("model.layers.1.mlp.experts.3.down_proj.weight")
    save_file(tensors, tmp_path / "short.safetensors")
    with pytest.raises(WeightSyncError, match=r"lacks 1 tensors \(model\.layers\.1\.mlp\.experts\.3\.down_proj"):
        await vllm.update_weights(tmp_path / "short.safetensors", 1)
    save_file({**tensors, "model.layers.1.mlp.experts.3.down_proj.weight": gone[:1]}, tmp_path / "shape.safetensors")
    with pytest.raises(WeightSyncError, match="has other shapes for 1"):
        await vllm.update_weights(tmp_path / "shape.safetensors", 1)
    (tmp_path / "cut.safetensors").write_bytes((model.path / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(WeightSyncError, match="no whole safetensors file"):
        await vllm.update_weights(tmp_path / "cut.safetensors", 1)
    assert set((await sample(vllm, prompt_of(20))).policy_versions.tolist()) == before


async def test_without_the_remedy_the_probe_stops_the_run_and_death_is_told(model: ModelInfo, tmp_path: Path) -> None:
    """A second server: first the corruption that every call answers with 200, then `kill -9` of vLLM."""
    others = tree_of(os.getpid())
    engine = server(environment={**server().environment, "LEGO_RL_CPU_REPACK": "0"})
    reference = Reference(model)
    await engine.start(model, tmp_path)
    try:
        await engine.probe.check(model, engine.score, reference.score)
        await engine.update_weights(model.path / "model.safetensors", 1)
        with pytest.raises(WeightSyncError, match=r"max \|Δ log p\| .* bar is inference\.probe\.max_abs_dlogp=0\.001"):
            await engine.probe.check(model, engine.score, reference.score)
        running = asyncio.create_task(sample(engine, prompt_of(20), max_tokens=1500, stop_token_ids=[]))
        await asyncio.sleep(0.2)
        tree = {pid: line for pid, line in tree_of(os.getpid()).items() if pid not in others}
        assert len(tree) >= 4, tree
        api_server = max(pid for pid, line in tree.items() if "api_server" in line)
        os.kill(api_server, signal.SIGKILL)
        with pytest.raises(InferenceError, match=r"lost vLLM \(exit code"):
            await running
        with pytest.raises(InferenceError, match="lost vLLM"):
            await sample(engine, prompt_of(20))
        with pytest.raises(RunError, match="did not answer /pause"):
            await engine.update_weights(model.path / "model.safetensors", 2)
        with pytest.raises(InferenceError, match="weights are undefined"):
            await sample(engine, prompt_of(20))
    finally:
        await engine.stop()
    assert not tree.keys() & tree_of(os.getpid()).keys(), "something of the server is left"
    await engine.stop()


def tree_of(root: int) -> dict[int, str]:
    """Descendants of `root`: process id → command line."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(entry.name)] = (entry / "cmdline").read_text()
    found: dict[int, str] = {}
    frontier = {root}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= {pid: lines[pid] for pid in frontier}
    return found
