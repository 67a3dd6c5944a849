"""A token engine that plays a script instead of sampling: for tests and for showing that rewards work.

It answers in ids of the model's own tokenizer, stop token included, with log-probabilities and routed experts of the
right shapes. Invariants: same seed, session and prompts give the same answer; the routing of a position depends on its
token and place alone, so a prompt that is sent again gets the same rows, as from a real engine; the same prompt twice
in a row is a retry and gets the same turn. It has no weights: it refuses to score.
"""

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.contracts import Probe, Say, TokenSink
from engine.core.errors import ConfigError, InferenceError
from engine.core.records import Generation
from engine.core.specs import ModelInfo
from engine.inference.script import Script, Turn, read_script, turns_of

_MEAN_SURPRISE = 0.4
"""Mean of -log p of a scripted token, in nats: that of a confident model."""
_PIECE = 4
"""Tokens that are handed over at a time."""


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """What `start` reads from the checkpoint folder."""

    model: ModelInfo
    tokenizer: Any
    stop_token: int
    experts: int


@dataclass(kw_only=True)
class _Progress:
    """How far one session is."""

    calls: int
    prompt: NDArray[np.int32]


class ScriptedEngine:
    """Plays `script`, then `final_text` for ever. Subclass it and override `turn` for scripts that react."""

    def __init__(self, *, script: str | Mapping[str, Any], final_text: str, seed: int, probe: None) -> None:
        self.script = script
        self.final_text = final_text
        self.seed = seed
        self.probe: Probe | None = probe
        self._turns: Script = {}
        self._sessions: dict[str, _Progress] = {}
        self._loaded: _Loaded | None = None
        self._version = 0

    def problems(self) -> Sequence[ConfigError]:
        try:
            read_script(self.script)
        except ValueError as error:
            way = "give a YAML file, or a mapping {pattern: [{text: …, calls: [{name: …, arguments: {…}}]}]}"
            return [ConfigError("inference.script", self.script, str(error), way)]
        return []

    async def prepare(self, say: Say) -> None:
        """Nothing is built. Raises ConfigError when the script cannot be read."""
        for error in self.problems():
            raise error
        say("scripted engine: ready")

    async def start(self, model: ModelInfo, directory: Path) -> None:  # noqa: ARG002 (writes nothing)
        """Load the tokenizer. Raises ConfigError for a script that this model's renderer cannot express."""
        for error in self.problems():
            raise error
        from tokenizers import Tokenizer

        self._turns = read_script(self.script)
        if model.renderer != "qwen3" and any(turn.calls for turns in self._turns.values() for turn in turns):
            way = "write the calls as text, or choose a model with model.renderer=qwen3"
            raise ConfigError(
                "inference.script", self.script, f"calls are written in Qwen3's form, not {model.renderer}'s", way
            )
        config = json.loads((model.path / "config.json").read_text("utf-8"))
        config = config.get("text_config", config)
        eos = config["eos_token_id"]
        self._loaded = _Loaded(
            model=model,
            tokenizer=Tokenizer.from_file(str(model.path / "tokenizer.json")),
            stop_token=eos[0] if isinstance(eos, list) else eos,
            experts=int(config.get("num_experts") or 0),
        )
        self._sessions, self._version = {}, 0

    async def restart(self) -> None:
        """It never ends by itself."""

    async def stop(self) -> None:
        self._loaded = None

    def failure(self) -> str:
        return ""

    def turn(self, session: str, index: int, prompt_ids: NDArray[np.int32]) -> Turn:  # noqa: ARG002 (for subclasses)
        """The assistant message that answers call number `index` (from 0) of a session."""
        turns = turns_of(self._turns, session)
        return turns[index] if index < len(turns) else Turn(text=self.final_text)

    async def generate(
        self,
        prompt_ids: NDArray[np.int32],
        *,
        max_tokens: int,
        temperature: float,  # noqa: ARG002 (a script is not sampled)
        top_p: float,  # noqa: ARG002
        seed: int,  # noqa: ARG002
        stop_token_ids: Sequence[int],
        routed_start: int,
        session: str,
        sink: TokenSink | None = None,
    ) -> Generation:
        loaded = self._serving(prompt_ids, max_tokens, routed_start)
        index, cached = self._advance(session, prompt_ids)
        turn = self.turn(session, index, prompt_ids)
        ids = loaded.tokenizer.encode(turn.written(), add_special_tokens=False).ids
        if turn.stop:
            if loaded.stop_token not in stop_token_ids:
                raise InferenceError(
                    f"the script ends turns with token {loaded.stop_token}, not in {list(stop_token_ids)}"
                )
            ids.append(loaded.stop_token)
        whole = turn.stop and len(ids) <= max_tokens
        sampled = np.asarray(ids[:max_tokens], np.int32)
        if sink is not None:
            for start in range(0, len(sampled), _PIECE):
                sink(sampled[start : start + _PIECE].tolist())
                await asyncio.sleep(0)
        random = np.random.default_rng([self.seed, zlib.crc32(session.encode()), index])
        return Generation(
            token_ids=sampled,
            logprobs=-random.exponential(_MEAN_SURPRISE, len(sampled)).astype(np.float32),
            finish_reason="stop" if whole else "length",
            policy_versions=np.full(len(sampled), self._version, np.int32),
            routed_experts=self._routing(np.concatenate([prompt_ids, sampled])[:-1], routed_start),
            routed_start=routed_start,
            cached_tokens=cached,
        )

    async def score(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:  # noqa: ARG002 (the contract's)
        raise InferenceError("the scripted engine has no weights and cannot score; use inference=vllm to train")

    async def update_weights(self, weights: Path, version: int) -> None:
        """Loads nothing: later tokens carry `version`. Raises InferenceError when the file is not there."""
        if not weights.is_file():
            raise InferenceError(f"no weights at {weights}")
        self._version = version

    def _serving(self, prompt_ids: NDArray[np.int32], max_tokens: int, routed_start: int) -> _Loaded:
        """The same refusals as a real engine."""
        if self._loaded is None:
            raise InferenceError("the scripted engine is not running: start it first")
        limit = self._loaded.model.max_context
        if not 0 < len(prompt_ids) < limit:
            raise InferenceError(f"a prompt of {len(prompt_ids)} tokens does not fit into a context of {limit}")
        if max_tokens < 1:
            raise InferenceError(f"max_tokens must be at least 1, got {max_tokens}")
        if not 0 <= routed_start <= len(prompt_ids):
            raise InferenceError(f"routed_start={routed_start} lies outside a prompt of {len(prompt_ids)} tokens")
        return self._loaded

    def _advance(self, session: str, prompt: NDArray[np.int32]) -> tuple[int, int]:
        """Number of this call within its session, and how many of its prompt's tokens the last prompt had too."""
        last = self._sessions.get(session)
        if last is None:
            self._sessions[session] = _Progress(calls=1, prompt=prompt)
            return 0, 0
        shared = min(len(prompt), len(last.prompt))
        differing = np.flatnonzero(prompt[:shared] != last.prompt[:shared])
        cached = int(differing[0]) if len(differing) else shared
        if not np.array_equal(prompt, last.prompt):
            last.calls, last.prompt = last.calls + 1, prompt
        return last.calls - 1, cached

    def _routing(self, ids: NDArray[np.int32], start: int) -> NDArray[Any] | None:
        """uint8|uint16 [len(ids) - start, layers, top_k]: the experts with the highest hashed scores."""
        loaded = self._loaded
        if loaded is None or not loaded.model.num_layers:
            return None
        model = loaded.model
        token = ids[start:, None, None].astype(np.uint64)
        position = np.arange(start, len(ids), dtype=np.uint64)[:, None, None]
        layer = np.arange(model.num_layers, dtype=np.uint64)[None, :, None]
        expert = np.arange(loaded.experts, dtype=np.uint64)[None, None, :]
        scores = _mixed(_mixed(_mixed(token + np.uint64(self.seed)) + position) + layer * np.uint64(65_537) + expert)
        chosen = np.argsort(scores, axis=-1)[..., : model.top_k]
        return chosen.astype(np.uint8 if loaded.experts <= 256 else np.uint16)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit finaliser: xor-shifts and multiplications by odd constants, wrapping."""
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xD1B54A32D192ED03)
    return values ^ (values >> np.uint64(32))
