"""A tiny model that begins with what a scripted player showed: tokeniser, random weights, supervised fit.

The demonstrations come from outside (they need harness, tasks and sandboxes); this module makes a checkpoint of them:

    bind → draft (tokeniser of their texts, random weights) → fit (weights) → settle (into the cache, whole)

Invariant: the cache folder's name covers every setting, the recipe's files and the fingerprint of what the
demonstrations are made with. Nothing is made by `prepare`; a folder that is missing is named by `problems()`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from engine.core.contracts import Say
from engine.core.errors import ConfigError, RunError
from engine.core.paths import cache_dir
from engine.core.records import Demonstration
from engine.core.specs import ModelInfo
from engine.core.whole import move_into_place
from engine.train.models import shape_problems

_RECIPE = ("tiny/lines.py", "tiny/phrases.py", "tiny/tokenizer.py", "tiny/weights.py", "sft.py", "warm_start.py")


class Demonstrations:
    """How the scripted player shows the tasks of the warm start; read by the job that runs it.

    Args:
        samples_per_task: finished trials per task.
        right_share: probability that the player picks the right repair.
    """

    def __init__(self, *, samples_per_task: int, right_share: float) -> None:
        self.samples_per_task = samples_per_task
        self.right_share = right_share


class SupervisedFit:
    """Settings of the supervised fit.

    Args:
        loss: `all`: language-model loss on every token; `sampled`: on those that the player wrote.
        prompt_weight: weight of a token that the player did not write, against 1, where `loss` is `all`.
        learning_rate: peak rate of AdamW.
        final_rate: rate at the end of the cosine, as a share of the peak.
        embedding_rate: learning rate of the (tied) embedding, as a share of that of the rest. AdamW pushes every token
            that is not the target with full force, so that rare tokens would become alike.
        betas: AdamW's moment decay rates.
        adam_epsilon: AdamW's epsilon.
        weight_decay: decoupled decay, on matrices alone.
        gradient_clip: largest global gradient norm.
        warmup_steps: updates of linear warm-up.
        epochs: times that each demonstration is seen.
        batch_tokens: tokens of one update, padding included.
        first_answer: share of rows that are seen up to the end of the first answer alone, which is cheap and where
            there is most to copy.
        rename: share of rows whose rare tokens are swapped for other rare ones when the row is seen.
        rename_below: a token is rare when at most this share of the demonstrations holds it.
        balance: coefficient of the routers' load-balancing loss; 0: off.
        experts_implementation: how transformers computes experts.
        threads: CPU threads of torch.
    """

    def __init__(
        self,
        *,
        loss: str,
        prompt_weight: float,
        learning_rate: float,
        final_rate: float,
        embedding_rate: float,
        betas: Sequence[float],
        adam_epsilon: float,
        weight_decay: float,
        gradient_clip: float,
        warmup_steps: int,
        epochs: int,
        batch_tokens: int,
        first_answer: float,
        rename: float,
        rename_below: float,
        balance: float,
        experts_implementation: str,
        threads: int,
    ) -> None:
        self.loss = loss
        self.prompt_weight = prompt_weight
        self.learning_rate = learning_rate
        self.final_rate = final_rate
        self.embedding_rate = embedding_rate
        self.betas = betas
        self.adam_epsilon = adam_epsilon
        self.weight_decay = weight_decay
        self.gradient_clip = gradient_clip
        self.warmup_steps = warmup_steps
        self.epochs = epochs
        self.batch_tokens = batch_tokens
        self.first_answer = first_answer
        self.rename = rename
        self.rename_below = rename_below
        self.balance = balance
        self.experts_implementation = experts_implementation
        self.threads = threads

    def run(self, folder: Path, rows: Sequence[Demonstration], seed: int, say: Say) -> dict[str, float]:
        """See `engine.train.sft.fit`."""
        from engine.train.sft import FitSettings, fit

        values = dict(vars(self))
        if values.pop("loss") == "sampled":
            values["prompt_weight"] = 0.0
        values["betas"] = (float(self.betas[0]), float(self.betas[1]))
        values["experts"] = values.pop("experts_implementation")
        return fit(folder, rows, FitSettings(**values), seed, say)


class WarmStarted:
    """A sparse Qwen3-MoE of a few million parameters, warm-started on demonstrations; see `WarmStartedModel`."""

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
        merges: int,
        phrases: float,
        min_frequency: int,
        separators: Sequence[str],
        max_context: int,
        renderer: str,
        dtype: str,
        demonstrations: Demonstrations,
        sft: SupervisedFit,
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
        self.merges = merges
        self.phrases = phrases
        self.min_frequency = min_frequency
        self.separators = separators
        self.max_context = max_context
        self.renderer = renderer
        self.dtype = dtype
        self.demonstrations = demonstrations
        self.sft = sft
        self._fingerprint: str | None = None

    def bind(self, fingerprint: str) -> None:
        """Say what the demonstrations are made with: harness, tasks, proxy, player. Before `info`."""
        self._fingerprint = fingerprint

    def info(self) -> ModelInfo:
        """Raises RunError before `bind`."""
        return self._info(cache_dir() / "models" / f"{self.name}-{self._digest()}")

    def problems(self) -> Sequence[ConfigError]:
        errors = list(shape_problems(vars(self)))
        if not errors and not self.info().path.is_dir():
            way = "run the same command with job=prepare"
            errors.append(ConfigError("model.name", self.name, "the warm start is not made yet", way))
        return errors

    async def prepare(self, say: Say) -> None:
        """Makes nothing: demonstrations need the whole system. Raises ConfigError when the sizes do not fit."""
        for error in shape_problems(vars(self)):
            raise error
        if not self.info().path.is_dir():
            say(f"model {self.name}: waits for its demonstrations")

    def draft(self, texts: Iterable[str], folder: Path) -> ModelInfo:
        """Write tokeniser, configuration and random weights into `folder`; what the fit then trains.

        `texts`: whole conversations as the engine sees them, control tokens included, of every task whose lines shall
        be tokens, held-out ones too. The same texts, in the same order, give the same bytes. Raises ConfigError."""
        from engine.train.tiny.lines import LineSettings, write_line_tokenizer
        from engine.train.tiny.weights import Shape, write_config, write_copying_weights

        lines = LineSettings(
            separators=tuple(self.separators),
            vocabulary=self.vocabulary,
            min_frequency=self.min_frequency,
            merges=self.merges,
            phrases=self.phrases,
        )
        folder.mkdir(parents=True, exist_ok=True)
        try:
            ids = write_line_tokenizer(folder, texts, lines, self.max_context)
        except ValueError as error:
            way = "raise it or lower model.merges"
            raise ConfigError("model.vocabulary", self.vocabulary, str(error), way) from error
        shape = Shape(
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            experts=self.experts,
            top_k=self.top_k,
            moe_intermediate=self.moe_intermediate,
            vocabulary=max(ids.values()) + 1,
            max_context=self.max_context,
        )
        write_config(folder, shape, ids, self.dtype)
        write_copying_weights(folder, shape, self.seed)
        return self._info(folder)

    def fit(self, folder: Path, rows: Sequence[Demonstration], say: Say) -> Mapping[str, float]:
        """Train the draft in `folder` on rows tokenised by it; see `engine.train.sft.fit`. For a worker thread."""
        return self.sft.run(folder, rows, self.seed, say)

    def settle(self, folder: Path) -> Path:
        """Move the finished draft (on the cache's file system) to `info().path`, unless another process was first."""
        path = self.info().path
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        move_into_place(folder, path)
        return path

    def _info(self, path: Path) -> ModelInfo:
        return ModelInfo(
            name=self.name,
            path=path,
            renderer=self.renderer,
            max_context=self.max_context,
            num_layers=self.layers,
            top_k=self.top_k,
            dtype=self.dtype,
        )

    def _digest(self) -> str:
        """Over every setting, the recipe's files and what the demonstrations are made with."""
        if self._fingerprint is None:
            raise RunError(f"model {self.name}: info() before bind()")
        settings = {
            **{key: value for key, value in vars(self).items() if key not in ("demonstrations", "sft")},
            "demonstrations": vars(self.demonstrations),
            "sft": vars(self.sft),
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=list).encode())
        for name in _RECIPE:
            digest.update(name.encode() + b"\0" + (Path(__file__).parent / name).read_bytes())
        return digest.hexdigest()[:12]
