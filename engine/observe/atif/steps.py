"""The steps of one thread: what the agent was told, what it answered, and what its tools gave back.

Invariant: a call that belongs to the thread is one step with its own token ids and log-probabilities; what belongs to
another thread, or was put into the agent's mouth by its harness, is copied context without them. A tool's result stands
in the step that called the tool. Refuses log-probabilities that JSON has no number for.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.core.errors import RunError
from engine.observe.atif.calls import Call, path_to, prompts
from engine.observe.atif.threads import Thread
from engine.wire.messages import Message, ToolCall, arguments_object

Step = dict[str, Any]


class Steps:
    """Steps of one thread; `prompt_ids`: whether each call's whole prompt is told too."""

    def __init__(self, thread: Thread, prompt_ids: bool) -> None:
        self.all: list[Step] = []
        self._of: dict[str, Step] = {}
        path = (*thread.before, *thread.calls)
        told = prompts(path_to(thread.last, {call.id: call for call in path})) if prompt_ids else {}
        before: Call | None = None
        for call in path:
            own = call in thread.calls
            for message in call.messages[_new(before, call) :]:
                self._hear(message, copied=not own)
            step = self._act(call.answer, copied=not own)
            if own:
                step |= {"timestamp": _answered(call.row), "llm_call_count": 1, "metrics": _metrics(call, told)}
            step["extra"] = {"exchange": call.id} | ({"unreadable": list(call.unread)} if call.unread else {})
            self._of[call.id] = step
            before = call

    def refer(self, thread: Thread, trajectory_id: str) -> None:
        """Note, at the call after which it began, that another thread was started."""
        anchor = thread.anchor
        if anchor is None:
            raise ValueError("a main thread was started by no other")
        step = self._of[anchor.id]
        results = step.setdefault("observation", {"results": []})["results"]
        result = next((one for one in results if one.get("source_call_id") == thread.tool_call != ""), None)
        if result is None:
            result = {"source_call_id": thread.tool_call} if thread.tool_call else {}
            results.append(result)
        result.setdefault("subagent_trajectory_ref", []).append(
            {"trajectory_id": trajectory_id, "extra": {"kind": thread.kind}}
        )

    # ------------------------------------------------------------ one message

    def _hear(self, message: Message, copied: bool) -> None:
        if message.role == "assistant":
            self._act(message, copied=True)
        elif message.role == "tool":
            self._result(message)
        else:
            self._add({"source": message.role, "message": message.text}, copied)

    def _act(self, message: Message, copied: bool) -> Step:
        step: Step = {"source": "agent", "message": message.text}
        if message.reasoning:
            step["reasoning_content"] = message.reasoning
        if message.tool_calls:
            step["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
        return self._add(step, copied)

    def _result(self, message: Message) -> None:
        result: dict[str, Any] = {"content": message.text}
        if message.is_error:
            result["extra"] = {"is_error": True}
        step = next((step for step in reversed(self.all) if _calls(step, message.tool_call_id)), None)
        if step is not None:
            result["source_call_id"] = message.tool_call_id
        else:  # the call stands in no message that the agent was told
            result["extra"] = result.get("extra", {}) | {"tool_call_id": message.tool_call_id}
            step = next((step for step in reversed(self.all) if step["source"] == "agent"), None)
        if step is None:
            step = self._add({"source": "system", "message": ""}, copied=False)
        step.setdefault("observation", {"results": []})["results"].append(result)

    def _add(self, step: Step, copied: bool) -> Step:
        step["step_id"] = len(self.all) + 1
        if copied:
            step["is_copied_context"] = True
        self.all.append(step)
        return step


def _new(before: Call | None, call: Call) -> int:
    """How many messages of a call's history stand up to the answer that it continues, that answer included.

    A harness rewrites what it echoes, never how many answers stand before this one; where it dropped one, the newest
    answer in the history is taken for it."""
    if before is None:
        return 0
    said = [place for place, message in enumerate(call.messages, 1) if message.role == "assistant"]
    count = sum(message.role == "assistant" for message in before.messages)
    if count < len(said):
        return said[count]
    return said[-1] if said else min(len(before.messages), len(call.messages))


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = arguments_object(call.arguments)
    told: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments or {}}
    if arguments is None:
        told["extra"] = {"malformed_arguments": call.arguments}
    return told


def _calls(step: Mapping[str, Any], call_id: str) -> bool:
    return any(call["tool_call_id"] == call_id for call in step.get("tool_calls", ()))


def _answered(row: Mapping[str, Any]) -> str:
    seconds = row["started_s"] + row["queued_s"] + row["generate_s"]
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _metrics(call: Call, told: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    row = call.row
    if not all(map(math.isfinite, row["logprobs"])):
        raise RunError(f"exchange {call.id} has a log-probability that is no finite number, and JSON has none such")
    metrics = {
        "prompt_tokens": row["prompt_length"],
        "completion_tokens": len(row["sampled_ids"]),
        "cached_tokens": row["cached_tokens"],
        "completion_token_ids": row["sampled_ids"],
        "logprobs": row["logprobs"],
        "extra": {
            "policy_versions": row["policy_versions"],
            "finish_reason": row["finish_reason"],
            "protocol": row["protocol"],
            "queued_s": row["queued_s"],
            "generate_s": row["generate_s"],
        },
    }
    return metrics | ({"prompt_token_ids": told[call.id]} if told else {})


def totals(steps: Sequence[Step]) -> dict[str, int]:
    """Sums over the steps that were sampled here."""
    sampled = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "total_prompt_tokens": sum(one["prompt_tokens"] for one in sampled),
        "total_completion_tokens": sum(one["completion_tokens"] for one in sampled),
        "total_cached_tokens": sum(one["cached_tokens"] for one in sampled),
        "total_steps": len(steps),
    }
