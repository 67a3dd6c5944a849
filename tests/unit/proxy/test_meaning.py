"""What counts as the same message, and what does not."""

from dataclasses import replace

import pytest

from engine.proxy.meaning import in_call_order, plain, plain_key, same_reply
from engine.wire.messages import Message, ToolCall


def reply(text: str = "", *, calls: tuple[ToolCall, ...] = (), reasoning: str = "") -> Message:
    return Message(role="assistant", text=text, tool_calls=calls, reasoning=reasoning)


def call(arguments: str, name: str = "edit", identity: str = "c1") -> ToolCall:
    return ToolCall(id=identity, name=name, arguments=arguments)


OURS = reply("I edit.", calls=(call('{"path": "a.py", "n": 5000.0, "text": "x = 1  \\ny\\n"}'),), reasoning="hm")


@pytest.mark.parametrize(
    "theirs",
    [
        replace(OURS, reasoning=""),
        replace(OURS, text="I edit.\n"),
        replace(OURS, tool_calls=(call('{"text":"x = 1\\ny","n":5000,"path":"a.py"}'),)),
        replace(OURS, tool_calls=(call('{"path":"a.py","n":5000,"text":"x = 1\\ny","replace_all":false,"x":null}'),)),
        replace(OURS, tool_calls=(call(OURS.tool_calls[0].arguments, identity="renamed by the harness"),)),
    ],
)
def test_rewritten_but_the_same(theirs: Message) -> None:
    assert same_reply(OURS, theirs, frozenset())


@pytest.mark.parametrize(
    "theirs",
    [
        replace(OURS, text="I edited."),
        replace(OURS, reasoning="something else"),
        replace(OURS, tool_calls=()),
        replace(OURS, tool_calls=OURS.tool_calls * 2),
        replace(OURS, tool_calls=(call('{"path": "b.py", "n": 5000, "text": "x = 1\\ny"}'),)),
        replace(OURS, tool_calls=(call('{"path": "a.py", "n": true, "text": "x = 1\\ny"}'),)),
        replace(OURS, tool_calls=(call('{"path": "a.py", "n": 5000}'),)),
        replace(OURS, tool_calls=(call('{"path": "a.py", "n": 5000, "text": "x = 1\\ny", "extra": 0}'),)),
        replace(OURS, tool_calls=(call(OURS.tool_calls[0].arguments, name="write"),)),
        replace(OURS, tool_calls=(call("{broken"),)),
    ],
)
def test_another_meaning(theirs: Message) -> None:
    assert not same_reply(OURS, theirs, frozenset())


def test_a_damaged_call_is_known_by_its_id_alone() -> None:
    ours = reply(calls=(call('{"path": "a'), call('{"path": "b"}', identity="c2")))
    renamed = call('{"error": "bad JSON"}', name="_openhands_malformed_tool_call")
    theirs = reply(calls=(renamed, ours.tool_calls[1]))
    assert same_reply(ours, theirs, frozenset({"c1"}))
    assert not same_reply(ours, theirs, frozenset())
    assert not same_reply(ours, reply(calls=(replace(renamed, id="c9"), ours.tool_calls[1])), frozenset({"c1"}))


def test_arguments_nested_beyond_reason_are_compared_as_text() -> None:
    deep = "[" * 900 + "]" * 900
    assert same_reply(reply(calls=(call(deep),)), reply(calls=(call(deep),)), frozenset())
    assert not same_reply(reply(calls=(call(deep),)), reply(calls=(call(deep + " "),)), frozenset())


def test_plain_text_keeps_what_is_meant() -> None:
    assert plain("  a\r\n\tb  \nc\n\n") == "a\n\tb\nc"
    assert plain("a\n\nb") == "a\n\nb"


def test_keys_of_foreign_messages() -> None:
    one = reply("x", calls=(call('{"a": 1, "b": 2}', identity="p"),))
    two = reply("x ", calls=(call('{"b":2,"a":1}', identity="q"),), reasoning="dropped later")
    assert plain_key(one) == plain_key(two)
    assert plain_key(one) != plain_key(reply("x", calls=(call('{"a": 1}'),)))
    assert plain_key(Message(role="user", text="x")) != plain_key(Message(role="system", text="x"))


def test_parallel_results_stand_in_the_order_of_their_calls() -> None:
    def result(identity: str) -> Message:
        return Message(role="tool", text=identity, tool_call_id=identity)

    asked = reply(calls=(call("{}", identity="c1"), call("{}", identity="c2")))
    user = Message(role="user", text="u")
    messages = [result("c2"), asked, result("other"), result("c2"), result("c1"), user, result("c2")]
    assert in_call_order(messages) == [
        result("c2"), asked, result("c1"), result("c2"), result("other"), user, result("c2"),
    ]  # fmt: skip
