"""Conversations with thinking and damaged calls, by each family's renderer and in each protocol: one segment."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxy_pieces import CHATML, MODEL, TAGGED, TERMINAL, call_text, make_checkpoint, model_info, served, tagged_call

from engine.core.records import Segment
from engine.tokens import load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

FUNCTION: dict[str, Any] = TERMINAL["function"]  # type: ignore[assignment]
RESULT = "x.py"
TAGGED_FAMILIES = ["qwen3.5", "qwen3.5-thinking", "qwen3.6-thinking", "qwen3.8-thinking", "template:qwen3.5"]
FAMILIES = ["qwen3", "qwen3-thinking", "template:qwen3", *TAGGED_FAMILIES]
THOUGHTLESS = TAGGED.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}")
"""A template that drops what was thought before, as the families' own do."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = THOUGHTLESS if family in TAGGED_FAMILIES else CHATML
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"), template)


History = list[dict[str, Any]]


@dataclass(frozen=True)
class Client:
    """A protocol's client: how it asks, and what it appends of an answer (with or without the thinking)."""

    path: str
    body: Callable[[History], dict[str, Any]]
    said: Callable[[dict[str, Any], bool], History]
    """From a response's body to what the next request holds: the answer and the results of its calls."""


def chat_said(answer: dict[str, Any], keeps: bool) -> History:
    message = answer["choices"][0]["message"]
    if not keeps:
        message.pop("reasoning_content", None)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in message.get("tool_calls") or ()
    ]
    return [message, *results]


def responses_said(answer: dict[str, Any], keeps: bool) -> History:
    output = [item for item in answer["output"] if keeps or item["type"] != "reasoning"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": RESULT}
        for item in output
        if item["type"] == "function_call"
    ]
    return output + results


def anthropic_said(answer: dict[str, Any], keeps: bool) -> History:
    blocks = [block for block in answer["content"] if keeps or block["type"] != "thinking"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    said: History = [{"role": "assistant", "content": blocks or [{"type": "text", "text": "(no content)"}]}]
    return said + ([{"role": "user", "content": results}] if results else [])


CLIENTS = {
    "openai_chat": Client(
        "/v1/chat/completions",
        lambda history: {"messages": history, "tools": [TERMINAL]},
        chat_said,
    ),
    "openai_responses": Client(
        "/v1/responses",
        lambda history: {"input": history, "tools": [{"type": "function", "strict": None} | FUNCTION], "store": False},
        responses_said,
    ),
    "anthropic": Client(
        "/v1/messages?beta=true",
        lambda history: {
            "messages": history,
            "max_tokens": 200,
            "tools": [{"name": "terminal", "input_schema": FUNCTION["parameters"]}],
        },
        anthropic_said,
    ),
}


def script(family: str) -> list[str]:
    """Thinking in each turn; calls that are whole, parallel, damaged and cut short; text that a user answers."""
    tagged = family in TAGGED_FAMILIES
    call = tagged_call if tagged else call_text
    opening = "" if tagged and family.endswith("-thinking") else "<think>\n"

    def turn(number: int, text: str) -> str:
        return f"{opening}hm {number}\n</think>\n\n{text}"

    damaged = call("ls").replace("</parameter>", "").replace('"}}', '"')
    return [
        turn(0, "Look.\n\n" + call("ls")),
        turn(1, damaged),
        turn(2, call("a") + "\n" + call("b")),
        turn(3, "Is it this one?"),
        turn(4, damaged),
        turn(5, "Done."),
    ]


Encode = Callable[[str], list[int]]


async def converse(
    checkpoint: Path, client: Client, family: str, keeps: bool, encode: Encode | None = None
) -> tuple[Segment, ...]:
    """Six turns; a user answers the one without a call. Every request is answered with 200."""
    async with served(checkpoint, script(family), renderer=family) as s:  # type: ignore[arg-type]
        s.engine.encode = encode or s.engine.encode
        base, key = s.session.endpoint.base_url, {"authorization": f"Bearer {s.key}", "anthropic-version": "2023-06-01"}
        history: History = [{"role": "user", "content": "go"}]
        async with httpx.AsyncClient(base_url=base, headers=key, timeout=60) as http:
            for _ in range(6):
                answer = await http.post(client.path, json={"model": MODEL} | client.body(history))
                assert answer.status_code == 200, answer.text
                said = client.said(answer.json(), keeps)
                history += said
                if said[-1].get("role") == "assistant" or said[-1].get("type") == "message":
                    history.append({"role": "user", "content": "Yes, go on."})
        exchanges, segments, termination = await s.session.close()
        assert termination is None
        assert [exchange.kind for exchange in exchanges] == ["policy"] * 6
        last = s.engine.calls[-1].prompt + s.engine.sampled[-1]
        assert [segment.token_ids.tolist() for segment in segments] == [last]
        assert segments[0].token_ids[segments[0].target].tolist() == [t for ids in s.engine.sampled for t in ids]
    return segments


@pytest.mark.parametrize("keeps", [True, False], ids=["thinking-kept", "thinking-dropped"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_thinking_and_damaged_calls_leave_one_segment(
    checkpoint: Path, family: str, name: str, keeps: bool
) -> None:
    (segment,) = await converse(checkpoint, CLIENTS[name], family, keeps)
    renderer: Any = load_renderer(model_info(checkpoint, family))
    text = renderer._tokenizer.decode(segment.token_ids.tolist())
    assert [text.count(f"hm {number}\n") for number in range(6)] == [1] * 6, "in the stream each thought stands once"


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_spelling_that_no_text_encodes_to_is_trained_as_sampled(
    checkpoint: Path, family: str, name: str
) -> None:
    """A policy may spell a word by letters. No id of it is ever replaced by the tokenizer's own spelling."""
    tokenizer = CheckpointTokenizer(checkpoint)
    whole = tokenizer.encode

    def spelled(text: str) -> list[int]:
        pieces = re.split(r"(</?(?:think|tool_call)>)", text)
        return [
            token
            for number, piece in enumerate(pieces)
            for part in ([piece] if number % 2 else piece)
            for token in whole(part)
        ]

    (segment,) = await converse(checkpoint, CLIENTS[name], family, False, spelled)
    sampled = segment.token_ids[segment.target].tolist()
    assert len(sampled) > len(whole(tokenizer.decode(sampled))) + 20, "these are spellings of the policy's own"


async def test_a_template_that_drops_thoughts_drops_none_of_a_stream(tmp_path: Path) -> None:
    """Plain text: the model's own template, no tools."""
    said = [f"<think>\nhm {number}\n</think>\n\nStep {number}.<|im_end|>" for number in range(3)]
    async with served(make_checkpoint(tmp_path, THOUGHTLESS), list(said), renderer="template") as s:
        headers = {"authorization": f"Bearer {s.key}"}
        history: History = [{"role": "user", "content": "go"}]
        async with httpx.AsyncClient(base_url=s.session.endpoint.base_url, headers=headers, timeout=60) as http:
            for _ in said:
                answer = await http.post(CLIENTS["openai_chat"].path, json={"model": MODEL, "messages": history})
                history += [*chat_said(answer.json(), False), {"role": "user", "content": "Go on."}]
        _, (segment,), _ = await s.session.close()
        tokenizer: Any = CheckpointTokenizer(tmp_path)
    text = tokenizer.decode(segment.token_ids.tolist())
    assert [text.count(f"hm {number}\n") for number in range(3)] == [1] * 3
    assert segment.token_ids[segment.target].tolist() == [token for ids in s.engine.sampled for token in ids]


@pytest.mark.parametrize("thinking", ["qwen3.5-thinking", "qwen3.6-thinking"])
def test_the_template_itself_would_drop_the_thinking(tmp_path: Path, thinking: str) -> None:
    """What makes the test above one: rendered anew, the history before a user's message has no thoughts."""
    renderer: Any = load_renderer(model_info(make_checkpoint(tmp_path, TAGGED), thinking))
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Is it this one?", "reasoning_content": "hm"},
        {"role": "user", "content": "Yes."},
    ]
    assert "hm" not in renderer._tokenizer.decode(renderer.render(history, []).tolist())


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_damaged_call_survives_a_compaction(checkpoint: Path, family: str, name: str) -> None:
    """What stands in a history that is rendered anew must not be a 400 for ever (vllm#55497). The harness sums up by
    itself here, so there are two segments, and each token is trained in one of them."""
    client = CLIENTS[name]
    async with served(checkpoint, script(family), renderer=family) as s:  # type: ignore[arg-type]
        base, key = s.session.endpoint.base_url, {"authorization": f"Bearer {s.key}", "anthropic-version": "2023-06-01"}
        async with httpx.AsyncClient(base_url=base, headers=key, timeout=60) as http:

            async def ask(history: History) -> History:
                answer = await http.post(client.path, json={"model": MODEL} | client.body(history))
                assert answer.status_code == 200, answer.text
                return history + client.said(answer.json(), True)

            start: History = [{"role": "user", "content": "go"}]
            before = await ask(start)
            damaged = (await ask(before))[len(before) :]
            after = await ask([{"role": "user", "content": "So far I looked around."}, *damaged])
            await ask(after)
        exchanges, segments, _ = await s.session.close()
    assert [segment.exchanges for segment in segments] == [("x0", "x1"), ("x2", "x3")]
    said = [exchange.sampled_ids.tolist() for exchange in exchanges]
    assert [segment.token_ids[segment.target].tolist() for segment in segments] == [
        said[0] + said[1],
        said[2] + said[3],
    ]


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_damaged_call_reaches_the_client_as_one(checkpoint: Path, family: str, name: str) -> None:
    """Its name is told, its arguments are no others than those that were written, and the turn ends in a call."""
    client = CLIENTS[name]
    async with served(checkpoint, script(family)[1:2], renderer=family) as s:  # type: ignore[arg-type]
        base, key = s.session.endpoint.base_url, {"authorization": f"Bearer {s.key}", "anthropic-version": "2023-06-01"}
        async with httpx.AsyncClient(base_url=base, headers=key, timeout=60) as http:
            body = {"model": MODEL} | client.body([{"role": "user", "content": "go"}])
            answer = (await http.post(client.path, json=body)).json()
    if name == "anthropic":
        (use,) = (block for block in answer["content"] if block["type"] == "tool_use")
        assert (use["name"], use["input"], answer["stop_reason"]) == ("terminal", {}, "tool_use")
        return
    if name == "openai_responses":
        (call,) = (item for item in answer["output"] if item["type"] == "function_call")
    else:
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = (made["function"] for made in choice["message"]["tool_calls"])
    assert call["name"] == "terminal" and "ls" in call["arguments"]
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(call["arguments"])
