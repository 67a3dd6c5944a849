"""One trial, turn by turn: what the harness said, what the policy answered, and how it was judged.

Invariant: a body that cannot be read as its protocol is shown as it is, never left out. A turn shows only what its
request adds to the request before it; the places of its tokens lead to the page of tokens.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from engine.observe.atif.calls import UNREADABLE, read_calls
from engine.observe.atif.threads import threads
from engine.ui.places import Asked, Page, find_trial, noted
from engine.ui.trials import group, outcome, stage_names
from engine.wire.messages import Message
from engine.wire.recorded import answer_made, messages_sent

_FACTS = (
    *("run", "epoch", "task", "sample", "attempt", "harness", "policy_version", "seed", "temperature", "top_p"),
    *("task_fingerprint", "termination", "reason", "reward", "resolved", "grade_s", "evidence", "diff"),
    *("findings", "verdict_findings", "tests"),
)
_CALL = (
    *("id", "parent", "kind", "protocol", "finish_reason", "error", "prompt_length", "cached_tokens", "started_s"),
    *("queued_s", "generate_s"),
)


def turns_page(root: Path, asked: Asked) -> Page:
    """The whole trial but its tokens."""
    reader, split, step, name = find_trial(root, asked)
    row = reader.row(step, split, name)
    problems: list[str] = []
    trained: Sequence[Mapping[str, Any]] = []
    with noted(problems):
        trained = reader.recomputed(step, name) or [] if split == "train" else []
    timings = dict(row["timings"])
    return {
        "run": asked["run"],
        "split": split,
        "step": step,
        "name": name,
        "outcome": outcome(row),
        "group": group(reader, step, split, name),
        "trial": {fact: row[fact] for fact in _FACTS},
        "timings": {stage: timings[stage] for stage in stage_names([{"timings": timings}])},
        "advantage": trained[0]["advantage"] if trained else None,
        "turns": _turns(row),
        "conversation": _parts(row),
        "segments": [_segment(segment) for segment in row["segments"]],
        "problems": problems,
    }


def _turns(row: Mapping[str, Any]) -> list[Page]:
    places = _places(row)
    told: dict[str, list[Page]] = {}
    answers: dict[str | None, Page | None] = {None: None}
    turns = []
    for exchange in row["exchanges"]:
        said, problem = _said(exchange)
        told[exchange["id"]] = said
        before = told.get(exchange["parent"] or "", [])
        answer, unread = _answer(exchange)
        answers[exchange["id"]] = answer
        new = said[_shared(before, said) :]
        turns.append(
            {name: exchange[name] for name in _CALL}
            | {
                "new_prompt_tokens": len(exchange["prompt_ids"]),
                "sampled_tokens": len(exchange["sampled_ids"]),
                "policy_versions": sorted(set(exchange["policy_versions"])),
                "mean_logprob": fmean(exchange["logprobs"]) if exchange["logprobs"] else None,
                "messages": new,
                "repeats": bool(new) and new[0] == answers.get(exchange["parent"]),
                "answer": answer,
                "unreadable": [text for text in (problem, unread) if text],
                "segment": places.get(exchange["id"], (None, 0))[0],
                "position": places.get(exchange["id"], (None, 0))[1],
            }
        )
    return turns


def _parts(row: Mapping[str, Any]) -> list[Page]:
    """What the conversation's branches are taken for, in the order in which they began."""
    return [
        {"kind": part.kind, "exchanges": [call.id for call in part.calls], "after": part.anchor and part.anchor.id}
        for part in threads(read_calls(row["exchanges"]))
    ]


def _places(row: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Exchange → the first segment that holds it, and the position of its first sampled token there."""
    exchanges = {exchange["id"]: exchange for exchange in row["exchanges"]}
    places: dict[str, tuple[int, int]] = {}
    for number, segment in enumerate(row["segments"]):
        position = 0
        for name in segment["exchanges"]:
            position += len(exchanges[name]["prompt_ids"])
            places.setdefault(name, (number, position))
            position += len(exchanges[name]["sampled_ids"])
    return places


def _said(exchange: Mapping[str, Any]) -> tuple[list[Page], str]:
    """The history that the harness sent; or none, and the body that is no such thing."""
    try:
        return [_plain(message) for message in messages_sent(exchange["protocol"], exchange["request"])], ""
    except UNREADABLE:
        return [], exchange["request"]


def _answer(exchange: Mapping[str, Any]) -> tuple[Page | None, str]:
    """The policy's message as the harness received it; or none, and the body that is no such thing."""
    if not exchange["response"]:
        return None, ""
    try:
        return _plain(answer_made(exchange["protocol"], exchange["response"])), ""
    except UNREADABLE:
        return None, exchange["response"]


def _plain(message: Message) -> Page:
    return {
        "role": message.role,
        "text": message.text,
        "reasoning": message.reasoning,
        "calls": [
            {"id": call.id, "name": call.name, "arguments": _spread(call.arguments)} for call in message.tool_calls
        ],
        "answers": message.tool_call_id,
    }


def _spread(arguments: str) -> str:
    """JSON one key a line, so that a person can read it; as it is where it is none."""
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _shared(before: Sequence[Page], now: Sequence[Page]) -> int:
    """How many messages at the start are the same."""
    count = 0
    for old, new in zip(before, now, strict=False):
        if old != new:
            break
        count += 1
    return count


def _segment(segment: Mapping[str, Any]) -> Page:
    return {
        "exchanges": segment["exchanges"],
        "tokens": len(segment["token_ids"]),
        "trained": sum(segment["target"]),
        "policy_versions": sorted({version for version in segment["policy_versions"] if version >= 0}),
    }
