"""The official `openai` client as judge of both protocols.

What it puts together from a stream, cut anywhere, is what it reads from the unstreamed answer; and what it sends back
of it is the same message again."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from wire_pieces import TEXT, Answer, answers, chunks, completion, request, streamed

from engine.wire.messages import Completion, Message, Refusal, TokenLogprob, ToolCall
from engine.wire.openai_chat import OPENAI_CHAT
from engine.wire.openai_responses import OPENAI_RESPONSES
from engine.wire.protocol import ArgumentsDelta, CallDelta, Delta, ReasoningDelta, TextDelta, WireProtocol
from engine.wire.replay import opening

FEW = settings(max_examples=60)
SIZES = st.integers(1, 200)


class Server:
    """Answers the client's next request with a body, and keeps what it sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.stream: Iterator[bytes] | None = None
        self.body: dict[str, Any] = {}
        self.status = 200

    def __call__(self, asked: httpx.Request) -> httpx.Response:
        self.sent = asked.read()
        if self.stream is not None:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self.stream)
        return httpx.Response(
            self.status, content=orjson.dumps(self.body), headers={"content-type": "application/json"}
        )


SERVER = Server()
CLIENT = openai.OpenAI(
    base_url="http://judge/v1",
    api_key="k",
    max_retries=0,
    http_client=httpx.Client(transport=httpx.MockTransport(SERVER)),
)


def serve(protocol: WireProtocol, answer: Answer, size: int, *, stream: bool, include_usage: bool = False) -> None:
    SERVER.status = 200
    SERVER.body = dict(protocol.response(answer.completion))
    raw = streamed(protocol, answer, request(include_usage=include_usage))
    SERVER.stream = chunks(raw, size) if stream else None


# ---------------------------------------------------------------- Chat Completions


def chat(**more: Any) -> Any:
    return CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **more)


def put_together(stream: Any) -> tuple[dict[str, Any], list[Any]]:
    """The message that the client's chunks make, as every client accumulates them; and the chunks."""
    said: dict[str, Any] = {"content": None, "calls": [], "finish": None, "logprobs": []}
    seen = list(stream)
    for chunk in seen:
        for choice in chunk.choices:
            delta = choice.delta
            if delta.content is not None:
                said["content"] = (said["content"] or "") + delta.content
            thought = getattr(delta, "reasoning_content", None)
            if thought is not None:
                said["reasoning"] = said.get("reasoning", "") + thought
            for part in delta.tool_calls or ():
                if part.index == len(said["calls"]):
                    said["calls"].append([part.id, part.function.name, part.function.arguments])
                else:
                    said["calls"][part.index][2] += part.function.arguments
            said["finish"] = choice.finish_reason or said["finish"]
            said["logprobs"] += choice.logprobs.content if choice.logprobs else []
    return said, seen


def as_read(choice: Any) -> dict[str, Any]:
    """An unstreamed choice, told in the same way."""
    message = choice.message
    said = {
        "content": message.content,
        "calls": [[c.id, c.function.name, c.function.arguments] for c in message.tool_calls or ()],
        "finish": choice.finish_reason,
        "logprobs": choice.logprobs.content if choice.logprobs else [],
    }
    thought = getattr(message, "reasoning_content", None)
    return said if thought is None else said | {"reasoning": thought}


@FEW
@given(answer=answers(), size=SIZES, include_usage=st.booleans())
def test_chat_streamed_and_unstreamed_are_the_same_message(answer: Answer, size: int, include_usage: bool) -> None:
    serve(OPENAI_CHAT, answer, size, stream=False)
    whole = chat()
    serve(OPENAI_CHAT, answer, size, stream=True, include_usage=include_usage)
    said, seen = put_together(chat(stream=True))
    assert said == as_read(whole.choices[0])
    assert {chunk.id for chunk in seen} == {whole.id} == {"chatcmpl-x7"}
    assert seen[-1].usage == (whole.usage if include_usage else None)


def test_chat_log_probabilities_are_the_same_in_a_stream() -> None:
    tokens = [TokenLogprob(text="a", logprob=-0.5), TokenLogprob(text="b", logprob=-1.0)]
    answer = Answer(completion(Message(role="assistant", text="ab"), logprobs=tokens), (TextDelta("a"), TextDelta("b")))
    serve(OPENAI_CHAT, answer, 7, stream=False)
    whole = as_read(chat().choices[0])
    serve(OPENAI_CHAT, answer, 7, stream=True)
    said, _ = put_together(chat(stream=True))
    assert said == whole and [token.logprob for token in said["logprobs"]] == [-0.5, -1.0]


def test_chat_an_error_within_a_stream_is_raised() -> None:
    stream = OPENAI_CHAT.stream(opening(completion(Message(role="assistant", text="ab"))), request())
    begun = stream.open() + stream.write(TextDelta("a"))
    SERVER.stream = iter([begun + stream.fail(Refusal("The engine failed.", status=500, kind="server_error"))])
    heard = []
    with pytest.raises(openai.APIError, match="The engine failed"):
        for chunk in chat(stream=True):
            heard.append(chunk.choices[0].delta.content)
            assert chunk.choices[0].finish_reason is None
    assert heard == [None, "a"]


# ---------------------------------------------------------------- Responses


def respond(**more: Any) -> Any:
    return CLIENT.responses.create(model="m", input=more.pop("input", "hi"), **more)


def items_of(stream: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The output that a client puts together from deltas alone, and the events; each `done` must agree."""
    items: list[dict[str, Any]] = []
    seen = list(stream)
    for event in seen:
        match event.type:
            case "response.output_item.added":
                assert event.output_index == len(items)
                items.append({"type": event.item.type, "id": event.item.id, "said": ""})
                if event.item.type == "function_call":
                    items[-1] |= {"call": (event.item.call_id, event.item.namespace, event.item.name)}
            case (
                "response.output_text.delta"
                | "response.reasoning_text.delta"
                | "response.function_call_arguments.delta"
            ):
                assert event.item_id == items[-1]["id"] and event.output_index == len(items) - 1
                items[-1]["said"] += event.delta
            case "response.output_text.done" | "response.reasoning_text.done":
                assert event.text == items[-1]["said"]
            case "response.function_call_arguments.done":
                assert event.arguments == items[-1]["said"]
            case "response.content_part.done":
                assert event.part.text == items[-1]["said"]
            case "response.output_item.done":
                assert told(event.item) == items[-1]
    return items, seen


def told(item: Any) -> dict[str, Any]:
    """A whole item, in the same way."""
    base = {"type": item.type, "id": item.id}
    if item.type == "function_call":
        return base | {"said": item.arguments, "call": (item.call_id, item.namespace, item.name)}
    return base | {"said": item.content[0].text}


@FEW
@given(answer=answers(), size=SIZES)
def test_responses_streamed_and_unstreamed_are_the_same_message(answer: Answer, size: int) -> None:
    serve(OPENAI_RESPONSES, answer, size, stream=False)
    whole = respond()
    serve(OPENAI_RESPONSES, answer, size, stream=True)
    items, seen = items_of(respond(stream=True))
    assert items == [told(item) for item in whole.output]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    last = seen[-1]
    cut = answer.completion.finish_reason == "length"
    assert last.type == ("response.incomplete" if cut else "response.completed")
    assert last.response == whole
    assert whole.status == ("incomplete" if cut else "completed")
    assert whole.output[-1].status == whole.status
    assert (whole.incomplete_details.reason if cut else whole.incomplete_details) == (
        "max_output_tokens" if cut else None
    )
    assert (whole.usage.input_tokens, whole.usage.input_tokens_details.cached_tokens) == (5, 2)


@FEW
@given(answer=answers().filter(lambda answer: answer.completion.finish_reason != "length"), size=SIZES)
def test_responses_the_clients_own_accumulator_agrees(answer: Answer, size: int) -> None:
    serve(OPENAI_RESPONSES, answer, size, stream=True)
    with CLIENT.responses.stream(model="m", input="hi") as stream:
        final = stream.get_final_response()
    assert [told(item) for item in final.output] == [
        told(item)
        for item in openai.types.responses.Response.model_validate(
            dict(OPENAI_RESPONSES.response(answer.completion))
        ).output
    ]
    assert final.output_text == answer.message.text


@FEW
@given(answer=answers())
def test_every_event_is_of_the_clients_own_types(answer: Answer) -> None:
    events: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    raw = streamed(OPENAI_RESPONSES, answer)
    for block in raw.split(b"\n\n")[:-1]:
        kind, _, data = block.partition(b"\n")
        event = events.validate_json(data.removeprefix(b"data: "))
        assert kind == b"event: " + event.type.encode()


@FEW
@given(
    pieces=st.lists(
        st.one_of(
            st.builds(TextDelta, TEXT),
            st.builds(ReasoningDelta, TEXT),
            st.builds(lambda name, text: (CallDelta(id=f"c{name}", name="n"), ArgumentsDelta(text)), TEXT, TEXT),
        ),
        max_size=6,
    )
)
def test_responses_deltas_in_any_order_lose_nothing(pieces: list[Any]) -> None:
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += piece if isinstance(piece, tuple) else [piece]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    arguments = [delta.text for delta in deltas if isinstance(delta, ArgumentsDelta)]
    answer = Answer(completion(Message(role="assistant", text=text)), tuple(deltas))
    serve(OPENAI_RESPONSES, answer, 50, stream=True)
    items, seen = items_of(respond(stream=True))
    assert [told(item) for item in seen[-1].response.output] == items
    assert seen[-1].response.output_text == text
    assert [item["said"] for item in items if item["type"] == "function_call"] == arguments


def test_responses_a_failure_is_the_last_event() -> None:
    stream = OPENAI_RESPONSES.stream(opening(completion(Message(role="assistant", text="ab"))), request())
    begun = stream.open() + stream.write(TextDelta("a"))
    SERVER.stream = iter([begun + stream.fail(Refusal("The engine failed.", status=500, kind="server_error"))])
    events = list(respond(stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed"
    assert (events[-1].response.error.code, events[-1].response.error.message) == ("server_error", "The engine failed.")
    assert "response.output_item.done" not in {event.type for event in events}, "a cut item is never done"


@pytest.mark.parametrize("protocol", [OPENAI_CHAT, OPENAI_RESPONSES], ids=lambda protocol: protocol.name)
def test_a_full_window_is_an_error_that_the_client_names(protocol: WireProtocol) -> None:
    SERVER.stream, SERVER.status = None, 400
    SERVER.body = dict(protocol.error(protocol.context_overflow(100, 120)))
    with pytest.raises(openai.BadRequestError) as caught:
        (chat if protocol is OPENAI_CHAT else respond)()
    assert (caught.value.code, caught.value.type) == ("context_length_exceeded", "invalid_request_error")
    assert "100" in caught.value.message and "120" in caught.value.message


# ---------------------------------------------------------------- histories

CALL = ToolCall(id="c1", name="terminal", arguments='{"a": 1}')
OTHER = ToolCall(id="c2", name="agents.spawn", arguments='{"b": 2}')
TURNS = {
    "tool, text, tool": [
        Message(role="assistant", text="", tool_calls=(CALL,)),
        Message(role="assistant", text="so far"),
        Message(role="assistant", text="again", tool_calls=(OTHER,)),
    ],
    "reasoning, tool, reasoning": [
        Message(role="assistant", text="", reasoning="hm", tool_calls=(CALL,)),
        Message(role="assistant", text="done", reasoning="ah"),
    ],
    "empty text": [Message(role="assistant", text=""), Message(role="assistant", text="", reasoning="only thought")],
    "two calls in one turn": [
        Message(role="assistant", text="both", tool_calls=(CALL, OTHER)),
        Message(role="assistant", text="", tool_calls=(CALL,)),
    ],
}


def results(turn: Message) -> list[Message]:
    """What follows a turn: each call's result, or else the user's word."""
    if not turn.tool_calls:
        return [Message(role="user", text="go on")]
    return [Message(role="tool", text=f"out {call.id}", tool_call_id=call.id) for call in turn.tool_calls]


def done(turn: Message) -> Answer:
    deltas: list[Delta] = [ReasoningDelta(letter) for letter in turn.reasoning]
    deltas += [TextDelta(letter) for letter in turn.text]
    for call in turn.tool_calls:
        deltas += [CallDelta(id=call.id, name=call.name), *map(ArgumentsDelta, call.arguments)]
    return Answer(completion(turn), tuple(deltas))


def chat_echo(turn: Message, history: list[Any], stream: bool) -> None:
    serve(OPENAI_CHAT, done(turn), 11, stream=stream)
    message: dict[str, Any]
    if stream:
        said, _ = put_together(chat(stream=True))
        calls = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": text}}
            for one, name, text in said["calls"]
        ]
        message = {"role": "assistant", "content": said["content"], "reasoning_content": said.get("reasoning")}
        message |= {"tool_calls": calls} if calls else {}
    else:
        message = chat().choices[0].message.to_dict()
    history.append(message)
    for after in results(turn):
        one = {"role": after.role, "content": after.text}
        history.append(one | ({"tool_call_id": after.tool_call_id} if after.tool_call_id else {}))


def responses_echo(turn: Message, history: list[Any], stream: bool) -> None:
    serve(OPENAI_RESPONSES, done(turn), 11, stream=stream)
    output = list(respond(stream=True))[-1].response.output if stream else respond().output
    history += [item.to_dict() for item in output]
    for after in results(turn):
        if after.tool_call_id:
            history.append({"type": "function_call_output", "call_id": after.tool_call_id, "output": after.text})
        else:
            history.append({"role": "user", "content": [{"type": "input_text", "text": after.text}]})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS.keys())
def test_a_history_that_the_client_sends_back_is_what_was_said(turns: list[Message], stream: bool) -> None:
    meant = [Message(role="user", text="start")]
    sent_chat: list[Any] = [{"role": "user", "content": "start"}]
    sent_items: list[Any] = [{"role": "user", "content": "start"}]
    for turn in turns:
        meant += [turn, *results(turn)]
        chat_echo(turn, sent_chat, stream)
        responses_echo(turn, sent_items, stream)
    any_answer: Completion = completion(Message(role="assistant", text=""))
    SERVER.stream, SERVER.status = None, 200
    SERVER.body = dict(OPENAI_CHAT.response(any_answer))
    CLIENT.chat.completions.create(model="m", messages=sent_chat)
    assert OPENAI_CHAT.parse(SERVER.sent).messages == tuple(meant)
    SERVER.body = dict(OPENAI_RESPONSES.response(any_answer))
    respond(input=sent_items, include=["reasoning.encrypted_content"], store=False)
    assert OPENAI_RESPONSES.parse(SERVER.sent).messages == tuple(meant)
