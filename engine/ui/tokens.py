"""One token stream, token by token: text, id, mask, both log-probabilities, policy version.

A stream is a segment (what is trained), or a call that is in none: a side call, a turn that was lost.

Invariant: numbers are the store's own, and what the store does not have is empty, with the reason on the page. Texts
come from the tokeniser that the run keeps; without it the ids stand alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.core.errors import RunError
from engine.core.records import Split
from engine.store.reader import Reader
from engine.tokens.tokenizer import CheckpointTokenizer
from engine.ui.places import Asked, Page, Unknown, find_number, find_trial

AT_ONCE = 1000
"""Tokens on one page."""
_COLUMNS = ("exchanges", "segments", "temperature")


def tokens_page(root: Path, asked: Asked) -> Page:
    """`segment` or `exchange`: which stream, the first segment where neither is named; `start`: the first token shown;
    `only=sampled`: no context."""
    reader, split, step, name = find_trial(root, asked)
    row = reader.row(step, split, name, _COLUMNS)
    if "exchange" in asked:
        tokens, why_not = _of_exchange(row, asked["exchange"]), "this call is in no segment: nothing of it is trained"
    else:
        tokens, why_not = _of_segment(reader, (step, split, name), row, find_number(asked, "segment", 0))
    total = len(tokens)
    if asked.get("only") == "sampled":
        tokens = [token for token in tokens if token["sampled"]]
    start = find_number(asked, "start", 0)
    shown = tokens[start : start + AT_ONCE]
    texts, no_texts = _texts(reader, [token["id"] for token in shown])
    return {
        "run": asked["run"],
        "split": split,
        "step": step,
        "name": name,
        "segment": None if "exchange" in asked else find_number(asked, "segment", 0),
        "exchange": asked.get("exchange"),
        "only": "sampled" if asked.get("only") == "sampled" else "",
        "segments": len(row["segments"]),
        "apart": _apart(row),
        "temperature": row["temperature"],
        "total": total,
        "start": start,
        "selected": len(tokens),
        "at_once": AT_ONCE,
        "tokens": [token | {"text": text} for token, text in zip(shown, texts, strict=True)],
        "why_no_texts": no_texts,
        "why_not_recomputed": why_not,
    }


def _apart(row: Mapping[str, Any]) -> list[str]:
    """Calls that are in no segment and have tokens."""
    held = {name for segment in row["segments"] for name in segment["exchanges"]}
    return [
        one["id"] for one in row["exchanges"] if one["id"] not in held and (one["prompt_ids"] or one["sampled_ids"])
    ]


def _of_segment(
    reader: Reader, trial: tuple[int, Split, str], row: Mapping[str, Any], number: int
) -> tuple[list[Page], str]:
    """The segment's tokens, and why none of them has a recomputed log-probability, if so."""
    if number >= len(row["segments"]):
        raise Unknown(f"This trial has {len(row['segments'])} segments, counted from 0; there is no segment {number}.")
    segment = row["segments"][number]
    recomputed, why_not = _recomputed(reader, trial, number, sum(segment["target"]))
    again = iter(recomputed)
    tokens = []
    streams = (segment["token_ids"], segment["target"], segment["logprobs"], segment["policy_versions"])
    for position, ((exchange, sampled), token_id, target, captured, version) in enumerate(
        zip(_origins(row, segment), *streams, strict=True)
    ):
        value = next(again, None) if target else None
        tokens.append(
            {
                "position": position,
                "id": token_id,
                "exchange": exchange,
                "sampled": sampled,
                "target": target,
                "captured": captured if target else None,
                "recomputed": value,
                "gap": None if value is None else value - captured,
                "policy_version": version if target else None,
            }
        )
    return tokens, why_not


def _origins(row: Mapping[str, Any], segment: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Of each token of a segment: the call that brought it, and whether it was sampled there."""
    exchanges = {exchange["id"]: exchange for exchange in row["exchanges"]}
    origins: list[tuple[str, bool]] = []
    for name in segment["exchanges"]:
        origins += [(name, False)] * len(exchanges[name]["prompt_ids"])
        origins += [(name, True)] * len(exchanges[name]["sampled_ids"])
    return origins


def _recomputed(
    reader: Reader, trial: tuple[int, Split, str], number: int, targets: int
) -> tuple[Sequence[float], str]:
    """The trainer's log-probabilities of a segment's targets; or none, and why."""
    step, split, name = trial
    if split != "train":
        return (), "held-out trials are not trained, so the trainer recomputes nothing of them"
    try:
        segments = reader.recomputed(step, name)
    except RunError as error:
        return (), str(error)
    if segments is None:
        if reader.layout.recomputed(step).exists():
            return (), "the trainer saw nothing of this trial: it was excluded, or another attempt was kept"
        return (
            (),
            "the trainer has not reached this step, or the run is older than the keeping of them",
        )
    values: list[float] = next((one["logprobs"] for one in segments if one["segment"] == number), [])
    if len(values) != targets:
        return (), f"the store has {len(values)} recomputed log-probabilities for {targets} trained tokens"
    return values, ""


def _of_exchange(row: Mapping[str, Any], name: str) -> list[Page]:
    """What one call adds: its new prompt tokens and what was sampled, none of it trained."""
    exchange = next((one for one in row["exchanges"] if one["id"] == name), None)
    if exchange is None:
        raise Unknown(f"There is no call {name!r} in this trial.")
    return list(_added(exchange))


def _added(exchange: Mapping[str, Any]) -> Iterator[Page]:
    blank = {"exchange": exchange["id"], "target": False, "recomputed": None, "gap": None}
    first = exchange["prompt_length"] - len(exchange["prompt_ids"])
    for position, token_id in enumerate(exchange["prompt_ids"], first):
        yield blank | {"position": position, "id": token_id, "sampled": False, "captured": None, "policy_version": None}
    sampled = zip(exchange["sampled_ids"], exchange["logprobs"], exchange["policy_versions"], strict=True)
    for position, (token_id, captured, version) in enumerate(sampled, exchange["prompt_length"]):
        yield blank | {
            "position": position,
            "id": token_id,
            "sampled": True,
            "captured": captured,
            "policy_version": version,
        }


def _texts(reader: Reader, ids: Sequence[int]) -> tuple[Sequence[str | None], str]:
    """The text of each token by itself (bytes that are no character read U+FFFD); or none, and why."""
    path = reader.layout.tokenizer
    try:
        tokenizer = _tokenizer(path.parent, path.stat().st_mtime_ns)
        return [tokenizer.decode([token]) for token in ids], ""
    except FileNotFoundError:
        why = f"the run keeps no {path.name}: it has not begun to sample, or it is older than the keeping of tokenisers"
    except Exception as error:  # the library raises Exception itself on a file that is no tokeniser
        why = f"{path} cannot be used ({' '.join(str(error).split())[:160]})"
    return [None] * len(ids), why


@lru_cache(maxsize=4)
def _tokenizer(folder: Path, changed_ns: int) -> CheckpointTokenizer:  # noqa: ARG001 (a key)
    return CheckpointTokenizer(folder)
