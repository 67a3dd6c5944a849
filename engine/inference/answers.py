"""From vLLM's JSON to a `Generation`, checked field by field.

Invariant: as many ids as the engine counted, as many log-probabilities as ids, and one routing row for each position
that was computed, from `routed_start` on: prompt + sampled - 1 - routed_start. Anything else is an AlignmentError that
names both lengths; nothing is padded or cut. Rows that name an expert twice are refused too: some builds answer a
buffer never written.
"""

import base64
import binascii
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.core.errors import AlignmentError, InferenceError
from engine.core.records import Generation
from engine.core.specs import ModelInfo

_NO_EVIDENCE = -9999.0
"""vLLM's stand-in for a log-probability that it does not have."""


def check_status(status: int, body: bytes, session: str) -> None:
    """Raises InferenceError with the server's own words."""
    if status != 200:
        raise InferenceError(f"vLLM answered {session} with {status}: {reason(body)}")


def reason(body: bytes) -> str:
    """The message of an error's body on one line."""
    try:
        told = orjson.loads(body)
        text = told["error"]["message"] if isinstance(told.get("error"), dict) else told.get("error") or str(told)
    except (ValueError, KeyError, AttributeError):
        text = body.decode("utf-8", "replace")
    return " ".join(str(text).split())[:500]


def generation(answer: Mapping[str, Any], model: ModelInfo, prompt: int, routed_start: int, version: int) -> Generation:
    """The first choice of `/inference/v1/generate`; `prompt` is the length that was sent. Raises AlignmentError."""
    choice = answer["choices"][0]
    ids = np.asarray(choice["token_ids"] or [], np.int32)
    if choice["finish_reason"] not in ("stop", "length", "abort"):
        raise InferenceError(f"vLLM ended a generation with finish reason {choice['finish_reason']!r}")
    usage = answer["usage"]
    if usage["prompt_tokens"] != prompt:
        raise AlignmentError(f"vLLM counted {usage['prompt_tokens']} prompt tokens where {prompt} were sent")
    if usage["completion_tokens"] != len(ids):
        raise AlignmentError(f"vLLM counted {usage['completion_tokens']} sampled tokens and answered {len(ids)}")
    details = usage.get("prompt_tokens_details") or {}
    return Generation(
        token_ids=ids,
        logprobs=_logprobs(choice, ids),
        finish_reason=choice["finish_reason"],
        policy_versions=np.full(len(ids), version, np.int32),
        routed_experts=_routing(choice, model, prompt + len(ids) - 1 - routed_start),
        routed_start=routed_start,
        cached_tokens=int(details.get("cached_tokens") or 0),
    )


def _logprobs(choice: Mapping[str, Any], ids: NDArray[np.int32]) -> NDArray[np.float32]:
    entries: Sequence[Mapping[str, Any]] = (choice.get("logprobs") or {}).get("content") or []
    if len(entries) != len(ids):
        raise AlignmentError(f"vLLM answered {len(entries)} log-probabilities for {len(ids)} sampled tokens")
    for position, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        value = entry["logprob"]
        if entry["token"] != f"token_id:{token}" or not math.isfinite(value) or value <= _NO_EVIDENCE:
            found = f"{entry['token']} with {value}"
            raise AlignmentError(f"no log-probability for sampled token {position} (id {token}): found {found}")
    return np.asarray([entry["logprob"] for entry in entries], np.float32)


def _routing(choice: Mapping[str, Any], model: ModelInfo, rows: int) -> NDArray[Any] | None:
    """uint8|uint16 [rows, layers, top_k], or None for dense models."""
    if not model.num_layers:
        return None
    encoded = choice.get("routed_experts")
    if encoded is None:
        if not choice["token_ids"]:  # aborted before any forward pass
            return np.zeros((0, model.num_layers, model.top_k), np.uint8)
        raise AlignmentError(f"vLLM answered no routed experts where {rows} rows are due")
    try:
        routed: NDArray[Any] = np.load(io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False)
    except (ValueError, binascii.Error) as error:
        raise AlignmentError(f"vLLM's routed experts cannot be read: {error}") from error
    wanted = (rows, model.num_layers, model.top_k)
    if routed.shape != wanted:
        raise AlignmentError(f"vLLM answered routed experts of shape {routed.shape} where {wanted} are due")
    if routed.dtype not in (np.uint8, np.uint16):
        raise AlignmentError(f"vLLM answered routed experts as {routed.dtype}, not uint8 or uint16")
    if model.top_k > 1 and bool((np.diff(np.sort(routed, axis=-1), axis=-1) == 0).any()):
        raise AlignmentError("vLLM's routed experts name an expert twice for one token: they were never captured")
    return routed


def prompt_logprobs(answer: Mapping[str, Any], ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """float32 [n - 1]: log p of each token after the first, from an answer with `prompt_logprobs`."""
    entries = answer.get("prompt_logprobs") or []
    if len(entries) != len(ids):
        raise AlignmentError(f"vLLM answered {len(entries)} prompt log-probabilities for {len(ids)} tokens")
    values = [entry[str(token)]["logprob"] for entry, token in zip(entries[1:], ids[1:].tolist(), strict=True)]
    return np.asarray(values, np.float32)
