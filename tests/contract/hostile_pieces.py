"""Requests of three protocols, and what every hostile client must leave: a proxy that serves, one exchange each."""

import asyncio
import json
from typing import Any

import pytest
from proxy_pieces import MODEL, TERMINAL, Served
from raw_http import post, talk

from engine.proxy.session import REFUSED_BODY

FUNCTION: dict[str, Any] = TERMINAL["function"]  # type: ignore[assignment]
CALL = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "out"},
        ],
        "tools": [TERMINAL],
        "max_tokens": 9,
        "stream": False,
    },
    "/v1/responses": {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "function_call", "call_id": "c", "name": "terminal", "arguments": '{"command": "ls"}'},
            {"type": "function_call_output", "call_id": "c", "output": "out"},
        ],
        "tools": [{"type": "function", "strict": None} | FUNCTION],
        "max_output_tokens": 9,
        "stream": True,
    },
    "/v1/messages?beta=true": {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "terminal", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "out"}]},
        ],
        "tools": [{"name": "terminal", "input_schema": FUNCTION["parameters"]}],
        "max_tokens": 9,
        "stream": True,
    },
}
COUNT = "/v1/messages/count_tokens"
PATHS = sorted(BODIES)
EACH = pytest.mark.parametrize("path", PATHS)
CONTROL = {"model": MODEL, "messages": [{"role": "user", "content": "go"}]}
GONE = "the client went away before the answer was there"


BOTH = pytest.mark.usefixtures("parser")


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


async def alive(s: Served) -> None:
    """Another client of the trial is served, whatever the first one does."""
    (answer,) = await talk(s, post(s, "/v1/chat/completions", dumped(CONTROL)))
    assert answer.status == 200


async def closed(s: Served, recorded: list[bytes]) -> None:
    """Each request was recorded once, as it came; no fault was noted."""
    async with asyncio.timeout(30):
        exchanges, _, _ = await s.session.close()
    assert [exchange.id for exchange in exchanges] == [f"x{index}" for index in range(len(recorded))]
    for exchange, body in zip(exchanges, recorded, strict=True):
        kept = body[:REFUSED_BODY] if exchange.error else body
        assert exchange.request == kept.decode("utf-8", "replace")
        assert exchange.error or exchange.response
