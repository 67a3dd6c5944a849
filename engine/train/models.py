"""The models that a run can train: one made by the project, or a checkpoint that lies on this machine.

Invariant: `info()` describes the very folder that inference and trainer load. A built model lives in the cache under a
digest of all that decides its bytes; it appears whole or not at all. A folder that is missing is a configuration
error, never downloaded in silence.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.contracts import Say
from engine.core.errors import ConfigError
from engine.core.paths import cache_dir
from engine.core.specs import ModelInfo
from engine.core.temporary import temporary_folder
from engine.core.whole import move_into_place


class TinyQwen3Moe:
    """A random sparse Qwen3-MoE of a few million parameters with a tokeniser trained by the project."""

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        hidden: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        experts: int,
        top_k: int,
        moe_intermediate: int,
        vocabulary: int,
        corpus_documents: int,
        max_context: int,
        renderer: str,
        dtype: str,
    ) -> None:
        self.name = name
        self.seed = seed
        self.hidden = hidden
        self.layers = layers
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.experts = experts
        self.top_k = top_k
        self.moe_intermediate = moe_intermediate
        self.vocabulary = vocabulary
        self.corpus_documents = corpus_documents
        self.max_context = max_context
        self.renderer = renderer
        self.dtype = dtype

    def info(self) -> ModelInfo:
        return ModelInfo(
            name=self.name,
            path=cache_dir() / "models" / f"{self.name}-{self._digest()}",
            renderer=self.renderer,
            max_context=self.max_context,
            num_layers=self.layers,
            top_k=self.top_k,
            dtype=self.dtype,
        )

    def problems(self) -> Sequence[ConfigError]:
        errors = list(shape_problems(vars(self)))
        if not errors and not self.info().path.is_dir():
            way = "run the same command with job=prepare"
            errors.append(ConfigError("model.name", self.name, "not built yet", way))
        return errors

    async def prepare(self, say: Say) -> None:
        """Build the checkpoint unless it is there. Raises ConfigError when the sizes do not fit together."""
        path = self.info().path
        if path.is_dir():
            return
        for error in self.problems():
            if error.key != "model.name":
                raise error
        say(f"model {self.name}: training the tokeniser and drawing weights")
        with temporary_folder("model", path.parent) as folder:
            draft = folder / "draft"
            draft.mkdir()
            size = await asyncio.to_thread(self._write, draft)
            draft.chmod(0o755)
            move_into_place(draft, path)
        say(f"model {self.name}: {size / 1e6:.1f} M parameters in {path}")

    def _write(self, folder: Path) -> int:
        from engine.train.tiny.corpus import documents
        from engine.train.tiny.tokenizer import write_tokenizer
        from engine.train.tiny.weights import Shape, parameters, write_config, write_weights

        shape = Shape(
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            experts=self.experts,
            top_k=self.top_k,
            moe_intermediate=self.moe_intermediate,
            vocabulary=self.vocabulary,
            max_context=self.max_context,
        )
        try:
            corpus = documents(self.seed, self.corpus_documents)
            ids = write_tokenizer(folder, corpus, self.vocabulary, self.max_context)
        except ValueError as error:
            way = "lower it or raise model.corpus_documents"
            raise ConfigError("model.vocabulary", self.vocabulary, str(error), way) from error
        write_config(folder, shape, ids, self.dtype)
        write_weights(folder, shape, self.seed)
        return parameters(shape)

    def _digest(self) -> str:
        """Over every setting and over the recipe's own files, so that a new recipe is a new model."""
        recipe = Path(__file__).parent / "tiny"
        digest = hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode())
        for file in sorted(recipe.iterdir()):
            if file.suffix in {".py", ".txt"}:
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]


class LocalCheckpoint:
    """A Hugging Face checkpoint folder that is already on this machine."""

    def __init__(self, *, name: str, path: str, max_context: int, renderer: str, dtype: str) -> None:
        self.name = name
        self.path = path
        self.max_context = max_context
        self.renderer = renderer
        self.dtype = dtype

    def info(self) -> ModelInfo:
        """Raises ConfigError when the folder holds no readable config.json."""
        try:
            config = json.loads((Path(self.path) / "config.json").read_text("utf-8"))
            config["model_type"]
            layers, top_k = _routing(config.get("text_config", config))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            way = "point it at a Hugging Face checkpoint folder"
            problem = f"no readable config.json of a model there ({type(error).__name__}: {error})"
            raise ConfigError("model.path", self.path, problem, way) from error
        return ModelInfo(
            name=self.name,
            path=Path(self.path),
            renderer=self.renderer,
            max_context=self.max_context,
            num_layers=layers,
            top_k=top_k,
            dtype=self.dtype,
        )

    def problems(self) -> Sequence[ConfigError]:
        folder = Path(self.path)
        if not folder.is_dir():
            way = "download the checkpoint and set model.path to its folder"
            return [ConfigError("model.path", self.path, "no such folder", way)]
        wanted = ("config.json", "tokenizer.json", "*.safetensors")
        missing = [pattern for pattern in wanted if not any(folder.glob(pattern))]
        if missing:
            way = "complete the download or set model.path to a whole checkpoint"
            return [ConfigError("model.path", self.path, f"the folder lacks {', '.join(missing)}", way)]
        try:
            self.info()
        except ConfigError as error:
            return [error]
        way = "download it again, or set model.path to a whole checkpoint"
        return [ConfigError("model.path", self.path, fault, way) for fault in weight_faults(folder)]

    async def prepare(self, say: Say) -> None:
        """Nothing is built; raises ConfigError when the folder is not whole."""
        for error in self.problems():
            raise error
        say(f"model {self.name}: {self.path}")


def weight_faults(folder: Path) -> Iterator[str]:
    """What a checkpoint's weights lack, as far as their headers and the index tell: files of a download that was cut
    off, or that did not come."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            yield f"{file.name} is no whole safetensors file ({' '.join(str(error).split())})"
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        yield f"{index.name} cannot be read"
        return
    missing = sorted(named - {file.name for file in files})
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
        yield f"the folder lacks {len(missing)} of {len(named)} files of weights ({shown})"


def shape_problems(sizes: Mapping[str, Any]) -> Iterator[ConfigError]:
    """What is wrong with the sizes of a tiny Qwen3-MoE: settings that no engine could run."""
    top_k, experts, heads, kv_heads = (sizes[key] for key in ("top_k", "experts", "heads", "kv_heads"))
    if top_k > experts:
        way = f"set it to at most model.experts={experts}"
        yield ConfigError("model.top_k", top_k, "more experts per token than there are", way)
    if heads % kv_heads:
        way = f"set it to a divisor of model.heads={heads}"
        yield ConfigError("model.kv_heads", kv_heads, "heads cannot be shared evenly", way)
    for key in ("hidden", "moe_intermediate"):
        if sizes[key] % 32:
            way = "set it to a multiple of 32"
            yield ConfigError(f"model.{key}", sizes[key], "vLLM's CPU expert kernel needs multiples of 32", way)


def _routing(config: Mapping[str, Any]) -> tuple[int, int]:
    """Number of routed layers and experts per token from a Hugging Face text configuration; (0, 0) when dense."""
    top_k = int(config.get("num_experts_per_tok") or 0)
    if not top_k:
        return 0, 0
    step = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    layers = range(int(config["num_hidden_layers"]))
    return sum(1 for layer in layers if layer not in dense and (layer + 1) % step == 0), top_k
