"""What counts as the same message, and what does not."""

from dataclasses import replace

import pytest
import yaml
from harness_pieces import ROOT

from engine.proxy.meaning import can_echo, in_call_order, plain, plain_key, same_reply, says_nothing, without_volatile
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
        replace(OURS, tool_calls=(call('{"path": "a.py", "n": 5000, "text": "x = 1\\ny", "m": 0}', identity="c9"),)),
        replace(OURS, tool_calls=(call('{"path": "a.py", "n": "5000", "text": "x = 1\\ny"}'),)),
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


def test_what_a_harness_made_of_its_own_call_is_that_call() -> None:
    """Claude Code fills in defaults and reads texts by its schema; only under an id of the proxy's is that no edit."""
    ours = reply(
        calls=(call('{"path":"a.py","old":"x  \\n","timeout":"5000","list":"[1, {\\"a\\": true}]","on":"true"}'),)
    )
    theirs = (
        '{"replace_all":false,"old":"x","path":"a.py","timeout":5000,"list":[1,{"a":true,"b":"new"}],"on":true,"m":3}'
    )
    assert same_reply(ours, reply(calls=(call(theirs),)), frozenset())
    assert not same_reply(ours, reply(calls=(call(theirs, identity="other"),)), frozenset())
    for edited in (theirs.replace("5000", "5001"), theirs.replace('"x"', '"y"'), theirs.replace("true,", "false,")):
        assert not same_reply(ours, reply(calls=(call(edited),)), frozenset())


def test_calls_that_no_harness_can_say_again() -> None:
    closed = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"function": {"name": "edit", "parameters": closed}}]
    assert can_echo(call('{"path": "a"}'), tools) and can_echo(call("{}"), tools)
    for lost in ('{"path": "a", "why": "because"}', '{"path": "a', "[]"):
        assert not can_echo(call(lost), tools)
    assert not can_echo(call("{}", name="unknown"), tools)
    for open_schema in (None, {}, closed | {"additionalProperties": True}):
        assert can_echo(call('{"why": 1}'), [{"function": {"name": "edit", "parameters": open_schema}}])


CLAUDE = yaml.safe_load((ROOT / "configs/harness/claude_code.yaml").read_text())["client"]["volatile"][0]
REMINDER = "<system-reminder>\nThe todo list is empty.\n</system-reminder>"


def test_volatile_text_is_taken_out_wherever_it_stands() -> None:
    clean = without_volatile([CLAUDE, r"x-billing: [^\n]*"])
    for text in (f"a\nb\n{REMINDER}", f"{REMINDER}\n\na\nb", f"a\n{REMINDER}\nb", "x-billing: 71;\na\nb", "a\nb"):
        assert plain(clean(text)) == "a\nb"
    assert clean("a <system-reminder> b") == "a <system-reminder> b"
    user, tool = Message(role="user", text=REMINDER), Message(role="tool", text=REMINDER, tool_call_id="c")
    assert says_nothing(user, clean) and not says_nothing(tool, clean)
    assert not says_nothing(Message(role="user", text=" "), clean)
    assert not says_nothing(user, without_volatile([]))


def test_long_runs_of_white_space_cost_no_more_than_their_length() -> None:
    """Where each space began a search of its own, this took hours, and no trial was served meanwhile."""
    gap = " " * 1_000_000
    assert plain(f"a{gap}b \nc") == f"a{gap}b\nc"
    assert without_volatile([CLAUDE])("<system-reminder>" * 30_000) == "<system-reminder>" * 30_000
    assert without_volatile(["<x>"])(f"a{gap}b{gap}<x>{gap}c<x>") == f"a{gap}b\nc\n"


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
    assert plain_key(one, "") == plain_key(two, "")
    assert plain_key(one, "") != plain_key(reply("x", calls=(call('{"a": 1}'),)), "")
    assert plain_key(Message(role="user", text="x"), "") != plain_key(Message(role="system", text="x"), "")


def test_parallel_results_stand_in_the_order_of_their_calls() -> None:
    def result(identity: str) -> Message:
        return Message(role="tool", text=identity, tool_call_id=identity)

    asked = reply(calls=(call("{}", identity="c1"), call("{}", identity="c2")))
    user = Message(role="user", text="u")
    messages = [result("c2"), asked, result("other"), result("c2"), result("c1"), user, result("c2")]
    assert in_call_order(messages) == [
        result("c2"), asked, result("c1"), result("c2"), result("other"), user, result("c2"),
    ]  # fmt: skip
