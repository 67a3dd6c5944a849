"""vLLM's answer as it comes: the events of a streamed generation, put together to the answer that is sent whole.

Invariant: what is put together has the form of the unstreamed answer, so that the same checks read it. A stream that
tells of an error, or ends before the generation did, raises InferenceError; it is never taken for a shorter answer.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from engine.core.contracts import TokenSink
from engine.core.errors import InferenceError
from engine.inference.answers import reason

_DATA = "data: "
_END = "[DONE]"


async def whole_answer(lines: AsyncIterator[str], sink: TokenSink) -> Mapping[str, Any]:
    """Read a stream to its end; `sink` gets the sampled ids as they come."""
    ids: list[int] = []
    logprobs: list[Any] = []
    last: dict[str, Any] = {}
    usage: Mapping[str, Any] | None = None
    async for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :]
        if data == _END:
            break
        event = orjson.loads(data)
        if "error" in event:
            raise InferenceError(f"vLLM gave up a generation: {reason(data.encode())}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            new = choice.get("token_ids") or []
            ids += new
            logprobs += (choice.get("logprobs") or {}).get("content") or []
            last |= {name: choice[name] for name in ("finish_reason", "routed_experts") if choice.get(name) is not None}
            if new:
                sink(new)
    if usage is None or "finish_reason" not in last:
        raise InferenceError("vLLM's stream ended before the generation did")
    whole = {"token_ids": ids, "logprobs": {"content": logprobs}, "routed_experts": None} | last
    return {"choices": [whole], "usage": usage}
