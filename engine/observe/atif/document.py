"""One trial as ATIF documents: a file for the agent, one more for each continuation, sub-agents inside.

Invariant: every trained call of the trial is a step with token ids in exactly one of its documents; reward and verdict
are the trial's and stand in each of its files. Calls that are not trained (side calls, lost turns, failures) are
listed with their sizes, without their texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.errors import AlignmentError
from engine.observe.atif.calls import Call, read_calls
from engine.observe.atif.steps import Steps, totals
from engine.observe.atif.threads import Thread, threads

VERSION = "ATIF-v1.8"
_FACTS = (
    *("run", "epoch", "task", "sample", "attempt", "split", "policy_version", "seed", "temperature", "top_p"),
    *("task_fingerprint", "reason", "grade_s", "tests", "evidence", "findings", "verdict_findings", "diff"),
)
_JUDGED = ("termination", "excluded", "reward", "resolved")
COLUMNS = (*_FACTS, *_JUDGED, "harness", "timings", "exchanges")
"""Of a stored trial, all that is told."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What the documents of one trial say that its row does not."""

    name: str
    """Of the trial; each file's name begins with it."""
    step: int
    """The optimisation step, from 0; of a validation: the number of updates before it."""
    agent_version: str
    model: str | None
    advantage: float | None
    """None: not trained (yet)."""
    prompt_ids: bool
    """Whether each call's whole prompt is told by its token ids."""


def documents(row: Mapping[str, Any], about: About) -> dict[str, dict[str, Any]]:
    """File name → document. Raises RunError and AlignmentError for what cannot be told faithfully."""
    calls = read_calls(row["exchanges"])
    found = threads(calls)
    _check_all(calls, found)
    part = next((thread for thread in found if thread.kind == "main"), None)
    if part is None:
        return {f"{about.name}.json": _nothing_sampled(row, about, calls)}
    files, number = {}, 0
    while part is not None:
        name = _part(about, number)
        files[f"{name}.json"] = _document(part, row, about, name) | {"extra": _extra(row, about, calls, number)}
        part, number = part.next, number + 1
        if part is not None:
            files[f"{name}.json"]["continued_trajectory_ref"] = f"{_part(about, number)}.json"
    return files


def _part(about: About, number: int) -> str:
    return about.name if number == 0 else f"{about.name}.cont-{number}"


def _document(thread: Thread, row: Mapping[str, Any], about: About, name: str) -> dict[str, Any]:
    steps = Steps(thread, about.prompt_ids)
    inner = []
    for child in thread.children:
        known_as = f"{about.name}.{child.first.id}"
        steps.refer(child, known_as)
        told = _document(child, row, about, known_as)
        inner.append(told | {"extra": {"kind": child.kind}})
    document = _head(row, about, name) | {"steps": steps.all, "final_metrics": totals(steps.all)}
    tools = [dict(tool) for tool in thread.first.tools]
    if tools:
        document["agent"]["tool_definitions"] = tools
    return document | ({"subagent_trajectories": inner} if inner else {})


def _head(row: Mapping[str, Any], about: About, name: str) -> dict[str, Any]:
    agent = {"name": row["harness"], "version": about.agent_version}
    return {
        "schema_version": VERSION,
        "session_id": f"{row['run']}/{about.name}",
        "trajectory_id": name,
        "agent": agent | ({} if about.model is None else {"model_name": about.model}),
    }


def _nothing_sampled(row: Mapping[str, Any], about: About, calls: Sequence[Call]) -> dict[str, Any]:
    """The form wants a step; it says why there is no other."""
    message = f"No answer of the model belongs to this trial: {row['termination']}. {row['reason']}".strip()
    steps = [{"step_id": 1, "source": "system", "message": message}]
    head = _head(row, about, about.name) | {"steps": steps, "final_metrics": totals(steps)}
    return head | {"extra": _extra(row, about, calls, 0)}


def _extra(row: Mapping[str, Any], about: About, calls: Sequence[Call], number: int) -> dict[str, Any]:
    """The verdict; with the first file all else that is known of the trial."""
    judged = {name: row[name] for name in _JUDGED} | {"part": number, "step": about.step}
    if number:
        return judged
    return (
        judged
        | {name: row[name] for name in _FACTS}
        | {
            "advantage": about.advantage,
            "timings": dict(row["timings"]),
            "calls_not_trained": [_untrained(call) for call in calls if not call.trained],
        }
    )


def _untrained(call: Call) -> dict[str, Any]:
    row = call.row
    return {
        **{name: row[name] for name in ("id", "parent", "kind", "protocol", "finish_reason", "error")},
        "prompt_tokens": row["prompt_length"],
        "completion_tokens": len(row["sampled_ids"]),
    }


def _check_all(calls: Sequence[Call], found: Sequence[Thread]) -> None:
    """Each trained call is told once."""
    told = sorted(call.number for thread in _reached(found) for call in thread.calls)
    trained = [call.number for call in calls if call.trained]
    if told != trained:
        raise AlignmentError(f"{len(trained)} calls were trained, {len(told)} would be told")


def _reached(found: Sequence[Thread]) -> Iterator[Thread]:
    waiting = [thread for thread in found if thread.kind == "main"]
    while waiting:
        thread = waiting.pop()
        yield thread
        waiting += thread.children + ([] if thread.next is None else [thread.next])
