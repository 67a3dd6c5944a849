"""vLLM's answer as it comes: the events of a streamed generation, put together to the answer that is sent whole.

Invariant: what is put together has the form of the unstreamed answer, so that the same checks read it. A stream that
tells of an error, or ends before the generation did, raises InferenceError; it is never taken for a shorter answer.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from engine.core.contracts import TokenSink
from engine.core.errors import InferenceError
from engine.inference.answers import reason

_DATA = b"data: "
_END = b"[DONE]"


class StreamedAnswer:
    """One stream; `sink` gets the sampled ids as they come."""

    def __init__(self, sink: TokenSink) -> None:
        self._sink = sink
        self._rest = b""
        """A line that is not whole yet."""
        self._ended = False
        self._ids: list[int] = []
        self._logprobs: list[Any] = []
        self._last: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """More bytes, cut anywhere. Raises InferenceError for an error that the stream tells of."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        new: list[int] = []
        for line in lines:
            if line.startswith(_DATA) and not self._ended:
                new += self._event(line[len(_DATA) :].rstrip())
        if new:
            self._sink(new)

    def _event(self, data: bytes) -> list[int]:
        """The ids of one event."""
        if data == _END:
            self._ended = True
            return []
        event = orjson.loads(data)
        if "error" in event:
            raise InferenceError(f"vLLM gave up a generation: {reason(data)}")
        self._usage = event.get("usage") or self._usage
        ids: list[int] = []
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
            self._logprobs += (choice.get("logprobs") or {}).get("content") or []
            for name in ("finish_reason", "routed_experts"):
                if choice.get(name) is not None:
                    self._last[name] = choice[name]
        self._ids += ids
        return ids

    def whole(self) -> Mapping[str, Any]:
        """The answer, when the stream has ended. Raises InferenceError when the generation had not."""
        if self._usage is None or "finish_reason" not in self._last:
            raise InferenceError("vLLM's stream ended before the generation did")
        content = {"content": self._logprobs}
        whole = {"token_ids": self._ids, "logprobs": content, "routed_experts": None} | self._last
        return {"choices": [whole], "usage": self._usage}
