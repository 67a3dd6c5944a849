"""The engine that `benchmarks/proxy.py` puts behind every proxy: it samples nothing and answers at once.

    python benchmarks/proxy_engine.py --port PORT        other options are taken and mean nothing

It speaks vLLM's `/inference/v1/generate` (ids in, ids out) and `/v1/chat/completions`, plain and streamed, so that a
proxy of either kind sits in front of the same thing. `POST /script` says what it answers, `GET /report` what it was
asked: above all how many prompts begin with the whole stream before them (the prompt and what was sampled for it).
"""

import argparse
import asyncio
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
END = b"0\r\n\r\n"


@dataclass(kw_only=True)
class Script:
    """What is answered: the turns in their order, the last one for ever."""

    turns: list[Mapping[str, Any]] = field(default_factory=lambda: [{"ids": [0], "text": "", "calls": []}])
    """`ids` as sampled, stop token included; `text`, `reasoning` and `calls` as vLLM's own parsers would read them."""
    per_event: int = 1
    """Tokens."""
    tokenizer: str = ""
    """Folder: chat messages are rendered by its template, as vLLM would, to know the prompt's ids."""


class Engine:
    """What all connections share."""

    def __init__(self) -> None:
        self.script = Script()
        self.calls = 0
        self.kept = 0
        self.stream: list[int] = []
        self.prompt_tokens = 0

    def load(self, script: Mapping[str, Any]) -> None:
        self.script = Script(**script)
        self.calls = self.kept = 0
        self.stream = []

    def report(self) -> Mapping[str, Any]:
        return {"calls": self.calls, "kept": self.kept, "prompt_tokens": self.prompt_tokens}

    def next(self, prompt: list[int]) -> Mapping[str, Any]:
        turns = self.script.turns
        turn = turns[min(self.calls, len(turns) - 1)]
        if len(turns) > 1:  # a conversation, which is one after the other
            if self.calls and prompt[: len(self.stream)] == self.stream:
                self.kept += 1
            self.stream = prompt + turn["ids"]
        self.calls += 1
        self.prompt_tokens = len(prompt)
        return turn

    def render(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt of chat messages; empty where the script needs none."""
        if not self.script.tokenizer:
            return []
        messages = []
        for message in body["messages"]:
            calls = [
                call | {"function": call["function"] | {"arguments": orjson.loads(call["function"]["arguments"])}}
                for call in message.get("tool_calls") or ()
            ]
            messages.append(
                message | {"content": message.get("content") or ""} | ({"tool_calls": calls} if calls else {})
            )
        tokenizer = _tokenizer(self.script.tokenizer)
        text = tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, tokenize=False
        )
        return list(tokenizer.encode(text, add_special_tokens=False))

    # ------------------------------------------------------------ the two APIs

    def generate(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Events; an unstreamed answer is one."""
        turn = self.next(body["token_ids"])
        ids = turn["ids"][: body["sampling_params"].get("max_tokens")]
        usage = _usage(len(body["token_ids"]), len(ids))
        step = self.script.per_event if body.get("stream") else len(ids)
        for start in range(0, len(ids), step):
            some = ids[start : start + step]
            last = start + step >= len(ids)
            logprobs = {"content": [{"token": f"token_id:{token}", "logprob": -0.25} for token in some]}
            finish = ("stop" if ids == turn["ids"] else "length") if last else None
            choice = {"index": 0, "token_ids": some, "logprobs": logprobs, "finish_reason": finish}
            event = {"request_id": "r", "choices": [choice]}
            if not body.get("stream"):
                event["usage"] = usage
            yield event
        if body.get("stream"):
            yield {"request_id": "r", "choices": [], "usage": usage}

    def chat(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        prompt = self.render(body)
        turn = self.next(prompt)
        ids = turn["ids"]
        usage = _usage(len(prompt) or 100, len(ids))
        calls = [
            {"index": index, "id": f"call_{self.calls}_{index}", "type": "function", "function": call}
            for index, call in enumerate(turn["calls"])
        ]
        finish = "tool_calls" if calls else "stop"
        told: dict[str, Any] = {"role": "assistant", "content": turn["text"] or None}
        if turn.get("reasoning"):
            told["reasoning_content"] = turn["reasoning"]
        envelope = {"id": f"chatcmpl-{self.calls}", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = told | ({"tool_calls": calls} if calls else {})
            choice = {"index": 0, "message": message, "finish_reason": finish, "token_ids": ids}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [_logprob(token) for token in ids]}
            yield envelope | {
                "object": "chat.completion",
                "choices": [choice],
                "usage": usage,
                "prompt_token_ids": prompt,
            }
            return
        envelope["object"] = "chat.completion.chunk"
        size = max(1, -(-len(turn["text"]) // max(1, len(ids) - 1)))
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": turn["text"][at : at + size]} for at in range(0, len(turn["text"]), size)]
        deltas += [{"tool_calls": [call]} for call in calls]
        for number, delta in enumerate([*deltas, {}]):
            choice = {"index": 0, "delta": delta, "finish_reason": None if number < len(deltas) else finish}
            if 0 < number < len(ids) and body.get("return_token_ids"):
                choice["token_ids"] = [ids[number - 1]]
            event = envelope | {"choices": [choice]}
            if number == 0 and body.get("return_token_ids"):
                event["prompt_token_ids"] = prompt
            yield event
        if (body.get("stream_options") or {}).get("include_usage"):
            yield envelope | {"choices": [], "usage": usage}


def _logprob(token: int) -> Mapping[str, Any]:
    return {"token": f"token_id:{token}", "logprob": -0.25, "bytes": None, "top_logprobs": []}


def _usage(prompt: int, sampled: int) -> Mapping[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


@functools.cache
def _tokenizer(folder: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


class Connection(asyncio.Protocol):
    """One connection; requests are answered in their order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._body = bytearray()
        self._path = b""
        self._transport: Any = None
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._streaming is not None:
            self._streaming.cancel()

    def on_url(self, url: bytes) -> None:
        self._path = url
        self._body.clear()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        engine, path = self._engine, self._path.decode().partition("?")[0]
        if path == "/script":
            engine.load(orjson.loads(self._body))
            return self._whole({})
        if path == "/report":
            return self._whole(engine.report())
        apis = {"/inference/v1/generate": engine.generate, "/v1/chat/completions": engine.chat}
        if path not in apis:
            return self._whole({"object": "list", "data": [{"id": "model", "object": "model"}]})
        body = orjson.loads(self._body)
        events = apis[path](body)
        if not body.get("stream"):
            return self._whole(next(iter(events)))
        self._streaming = asyncio.ensure_future(self._stream(events))
        return None

    def _whole(self, body: Mapping[str, Any]) -> None:
        raw = orjson.dumps(body)
        self._transport.write(HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(raw) + raw)

    async def _stream(self, events: Iterator[Mapping[str, Any]]) -> None:
        write = self._transport.write
        write(HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
        for event in events:
            await asyncio.sleep(0)  # each event is a write of its own, as from an engine that steps
            write(_chunk(b"data: %s\n\n" % orjson.dumps(event)))
        write(_chunk(b"data: [DONE]\n\n") + END)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int) -> None:
    engine = Engine()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    options, _ = parser.parse_known_args()
    asyncio.run(serve(options.port))


if __name__ == "__main__":
    main()
