"""One trial's calls without HTTP: which history a request continues, and which tokens are trained."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import BEGIN, CLOSE, Letters, decode, encode
from proxy_pieces import engine_failure
from turn_pieces import SYSTEM, TASK, Client, check_routing, client, refused, result

from engine.core.records import Termination
from engine.proxy.turn import ContextOverflow
from engine.wire.messages import Message, Refusal, ToolCall


async def test_an_append_only_conversation_is_one_segment() -> None:
    c = client(['a!{"command": "1"}', 'b!{"command": "2"}', "done"])
    one = await c.ask(SYSTEM, TASK)
    history = [SYSTEM, TASK, one, result(one, "r1")]
    two = await c.ask(*history)
    history += [two, result(two, "r2")]
    await c.ask(*history)
    (segment,) = c.segments
    assert segment.exchanges == ("x0", "x1", "x2")
    last = c.engine.calls[-1]
    assert segment.token_ids.tolist() == last.prompt + c.engine.sampled[-1]
    assert segment.token_ids[segment.target].tolist() == [token for ids in c.engine.sampled for token in ids]
    assert (segment.logprobs[segment.target] < 0).all() and not segment.logprobs[~segment.target].any()
    assert (segment.policy_versions == np.where(segment.target, 7, -1)).all()
    check_routing(segment)


async def test_sampling_is_the_trials_own() -> None:
    c = client(["one", "two"])
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, TASK, max_tokens=3)
    first, second = c.engine.calls
    assert (first.temperature, first.top_p, first.seed, first.max_tokens) == (0.7, 0.9, 100, 500)
    assert (second.seed, second.max_tokens, second.session) == (101, 3, "e0-task-s0-a0")
    assert first.routed_start == 0
    assert second.routed_start == len(first.prompt) + len(c.engine.sampled[0]) - 1
    assert first.stop_token_ids == (CLOSE,)


async def test_histories_that_mean_the_same_are_one_segment() -> None:
    """Re-serialised arguments, dropped text ends, swapped parallel results, a renamed malformed call."""
    c = client(['look !{"command": "ls", "n": 1.0}', '!{"command": "l', "done"])
    free: Any = ({"type": "function", "function": {"name": "terminal"}},)
    one = await c.ask(SYSTEM, TASK, tools=free)
    echo = replace(one, text="look", tool_calls=(replace(one.tool_calls[0], arguments='{"n":1,"command":"ls"}'),))
    rewritten = [replace(SYSTEM, text="rules \n"), TASK, echo, result(one, "r1")]
    two = await c.ask(*rewritten, tools=free)
    broken = replace(two.tool_calls[0], name="_openhands_malformed_tool_call", arguments='{"tool_name": "terminal"}')
    await c.ask(*rewritten, replace(two, tool_calls=(broken,)), result(two, "bad JSON"), tools=free)
    assert len(c.segments) == 1 and c.segments[0].exchanges == ("x0", "x1", "x2")


VOLATILE = (r"<system-reminder>[\s\S]*?</system-reminder>", r"x-billing: [^\n]*", r"\(no content\)")
REMINDER = "<system-reminder>todo</system-reminder>"


async def test_billing_headers_and_moving_reminders_do_not_split() -> None:
    """The header changes with each request; the reminder wanders to the newest message, or stands alone before it."""
    c = client(['!{"command": "1"}', "", "done"], volatile=VOLATILE)
    bill = [replace(SYSTEM, text=f"x-billing: {number};\nrules") for number in range(3)]
    aside = Message(role="user", text=REMINDER)
    one = await c.ask(bill[0], replace(TASK, text=f"{REMINDER}\ntask"))
    two = await c.ask(bill[1], TASK, one, result(one, f"r1\n{REMINDER}"), aside)
    blank = replace(two, text="(no content)")
    await c.ask(bill[2], aside, TASK, one, result(one, "r1"), blank, replace(TASK, text="on"), aside)
    (segment,) = c.segments
    assert segment.exchanges == ("x0", "x1", "x2")
    read = decode(segment.token_ids)
    assert read.count("x-billing") == 1 and read.count(REMINDER) == 4, "what is new is shown to the model"
    c = client(["one", "two"])
    one = await c.ask(bill[0], TASK)
    await c.ask(bill[1], TASK, one, TASK)
    assert len(c.segments) == 2, "nothing is volatile that the configuration does not name"


async def test_a_history_that_begins_anew_keeps_the_cached_prefix() -> None:
    """After a compaction the system prompt is rendered as it was at first, whatever its billing header says now."""
    c = client(["one", "two"], volatile=VOLATILE)
    first = replace(SYSTEM, text="x-billing: 1;\nrules")
    await c.ask(first, TASK)
    await c.ask(replace(first, text="x-billing: 2;\nrules"), replace(TASK, text="summary so far"))
    before, after = (decode(np.asarray(call.prompt)) for call in c.engine.calls)
    assert before.startswith("x-billing: 1;rules") and after.startswith("x-billing: 1;rules")


async def test_results_are_known_by_the_call_that_they_answer() -> None:
    """A harness that names the calls anew in each request (and returns results as they end) changes nothing."""
    c = client(["one", "two"])

    def history(mark: str) -> list[Message]:
        calls = tuple(ToolCall(id=f"{mark}{n}", name="terminal", arguments="{}") for n in range(2))
        results = [Message(role="tool", text=f"r{n}", tool_call_id=f"{mark}{n}") for n in range(2)]
        return [
            SYSTEM,
            TASK,
            Message(role="assistant", text="", tool_calls=calls),
            *results[:: 1 if mark == "a" else -1],
        ]

    one = await c.ask(*history("a"))
    await c.ask(*history("b"), one, TASK)
    assert [segment.exchanges for segment in c.segments] == [("x0", "x1")]


async def test_what_claude_code_makes_of_its_calls_does_not_split() -> None:
    """`replace_all` filled in, keys in another order, 5000.0 as 5000, white space gone, an unknown argument dropped."""
    properties = {name: {} for name in ("path", "old", "new", "timeout", "replace_all")}
    edit = {"type": "function", "function": {"name": "terminal", "parameters": {"properties": properties}}}
    sampled = [
        '!{"path": "a", "old": "x = 1  \\n", "new": "", "timeout": 5000.0}',
        '!{"path": "a", "why": "so"}',
        "done",
    ]
    c = client(sampled)
    one = await c.ask(SYSTEM, TASK, tools=(edit,))
    call = one.tool_calls[0]
    echo = replace(call, arguments='{"replace_all":false,"path":"a","old":"x = 1","new":"","timeout":5000}')
    history = [SYSTEM, TASK, replace(one, tool_calls=(echo,)), result(one, "ok")]
    two = await c.ask(*history, tools=(edit,))
    dropped = replace(two.tool_calls[0], arguments='{"path":"a"}')
    await c.ask(*history, replace(two, tool_calls=(dropped,)), result(two, "ok"), tools=(edit,))
    assert [segment.exchanges for segment in c.segments] == [("x0", "x1", "x2")]
    edited = replace(call, arguments='{"path":"a","old":"y = 1","new":"","timeout":5000}')
    await c.ask(SYSTEM, TASK, replace(one, tool_calls=(edited,)), result(one, "ok"), tools=(edit,))
    assert len(c.segments) == 2, "a changed word is an edit, whatever the id"


async def test_compaction_opens_a_segment_whose_history_is_context() -> None:
    c = client(["one", "two", "summary", "three"])
    one = await c.ask(SYSTEM, TASK)
    two = await c.ask(SYSTEM, TASK, one, TASK)
    await c.ask(SYSTEM, TASK, one, TASK, two, Message(role="user", text="summarise"), tools=())
    await c.ask(SYSTEM, replace(TASK, text="task so far: summary"), two, TASK)
    assert [segment.exchanges for segment in c.segments] == [("x0", "x1"), ("x2",), ("x3",)]
    assert c.texts == ["onetwo", "summary", "three"]
    for segment in c.segments:
        check_routing(segment)


AGENT = Message(role="system", text="You search.")


@pytest.mark.parametrize("awaited", [True, False], ids=["its result is awaited", "it outlives the compaction"])
async def test_a_compaction_loses_nothing_of_a_sub_agent(awaited: bool) -> None:
    """claude-code#32099: however its turns lie between those of its parent, they are one segment, and so are those that
    its parent sampled before; the result is where the harness put it."""
    c = client(['start!{"task": "look"}', 'a!{"command": "1"}', "summary", "found", "end"])
    start = await c.ask(SYSTEM, TASK)
    history = [SYSTEM, TASK, start]
    first = await c.ask(AGENT, Message(role="user", text="look"))
    inside = [AGENT, Message(role="user", text="look"), first, result(first, "r1")]
    if awaited:
        c.engine.script = ["found", "summary", "end"]
        found = await c.ask(*inside)
        await c.ask(*history, result(start, found.text), Message(role="user", text="summarise"))
    else:
        await c.ask(*history, result(start, "begun"), Message(role="user", text="summarise"))
        found = await c.ask(*inside)
    told = Message(role="user", text=f"summary; it said {found.text}")
    await c.ask(SYSTEM, told, start, result(start, found.text))
    asked = ('start{"task": "look"}summary', 'a{"command": "1"}found', "end")
    assert sorted(c.texts) == sorted(text.replace("{", "!{") for text in asked)
    assert all(segment.exchanges[0] in ("x0", "x1", "x4") for segment in c.segments)
    assert "it said found" in decode(c.segments[-1].token_ids)


async def test_a_sub_agent_compacts_for_itself_alone() -> None:
    c = client(['start!{"task": "look"}', "looked", "its summary", "found", "end"])
    start = await c.ask(SYSTEM, TASK)
    look = Message(role="user", text="look")
    looked = await c.ask(AGENT, look)
    await c.ask(AGENT, look, looked, Message(role="user", text="summarise"), tools=())
    found = await c.ask(AGENT, Message(role="user", text="its summary"), looked, look)
    await c.ask(SYSTEM, TASK, start, result(start, found.text))
    assert c.texts == ["looked", "its summary", "found", 'start!{"task": "look"}end']


async def test_an_edited_answer_branches_where_it_was_edited() -> None:
    c = client(["one", "two", "three"])
    one = await c.ask(SYSTEM, TASK)
    two = await c.ask(SYSTEM, TASK, one, TASK)
    await c.ask(SYSTEM, TASK, one, TASK, replace(two, text="edited"), TASK)
    first, second = c.segments
    assert (first.exchanges, second.exchanges) == (("x0", "x1"), ("x0", "x2"))
    assert c.texts == ["onetwo", "three"]
    assert "edited" in decode(second.token_ids) and "two" not in decode(second.token_ids)
    check_routing(second)


async def test_concurrent_branches_share_what_was_sampled_once() -> None:
    gate = asyncio.Event()
    c = client(["one", gate, "left", "right"])
    one = await c.ask(SYSTEM, TASK)
    left = asyncio.create_task(c.ask(SYSTEM, TASK, one, replace(TASK, text="left?")))
    await asyncio.sleep(0)
    right = await c.ask(SYSTEM, TASK, one, replace(TASK, text="right?"))
    gate.set()
    assert (right.text, (await left).text) == ("left", "right")
    assert sorted(c.texts) == ["oneleft", "right"] or sorted(c.texts) == ["left", "oneright"]


async def test_a_repeated_request_is_a_resample_and_both_are_trained() -> None:
    c = client(["one", "two", "three"])
    await c.ask(SYSTEM, TASK)
    two = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, two, TASK)
    assert c.texts == ["one", "twothree"]


async def test_a_repeated_request_after_a_lost_answer_is_a_retry() -> None:
    c = client(["one", "two"])
    await c.ask(SYSTEM, TASK)
    c.turns.conversation.turns[0].broken = True
    assert c.texts == ["one"], "a lost turn that nothing replaced was sampled by the policy all the same"
    await c.ask(SYSTEM, TASK)
    assert c.texts == ["two"]
    assert c.turns.conversation.turns[0].discarded


async def test_a_turn_that_a_later_history_holds_was_not_lost() -> None:
    c = client(["one", "two", "three"])
    one = await c.ask(SYSTEM, TASK)
    c.turns.conversation.turns[0].broken = True
    await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, TASK)
    assert sorted(c.texts) == ["onethree", "two"]


LOST = 'I go on.!{"command": "lost"}'


async def _lost() -> tuple[Client, list[Message], Message]:
    """A conversation whose second answer broke on its way, the history that was asked, and that answer."""
    c = client(['a!{"command": "1"}', LOST, 'b!{"command": "2"}', "done"])
    one = await c.ask(SYSTEM, TASK)
    history = [SYSTEM, TASK, one, result(one, "r1")]
    lost = await c.ask(*history)
    c.turns.conversation.turns[1].broken = True
    return c, history, lost


@pytest.mark.parametrize("kept", ["nothing", "a part of the text", "an empty call"])
async def test_what_a_client_kept_of_a_lost_answer_does_not_split_its_retry(kept: str) -> None:
    """As OpenCode does: the request is repeated as it was, and only later histories hold what had arrived."""
    c, history, lost = await _lost()
    two = await c.ask(*history)
    arrived = replace(lost, text="I go", tool_calls=())
    fragment = {
        "nothing": [replace(lost, text="", tool_calls=())],
        "a part of the text": [arrived, arrived],
        "an empty call": [
            replace(lost, tool_calls=(replace(lost.tool_calls[0], arguments="{}"),)),
            result(lost, "aborted"),
        ],
    }[kept]
    await c.ask(*history, *fragment, two, result(two, "r2"))
    (segment,) = c.segments
    assert segment.exchanges == ("x0", "x2", "x3")
    assert c.turns.conversation.turns[1].discarded


async def test_a_client_that_goes_on_from_what_it_got_has_left_the_lost_answer() -> None:
    """As Claude Code and Codex do: the next request holds the part that had arrived, which is context."""
    c, history, lost = await _lost()
    part = replace(lost, tool_calls=())
    two = await c.ask(*history, part)
    assert c.turns.conversation.turns[1].discarded
    await c.ask(*history, part, two, result(two, "r2"))
    (segment,) = c.segments
    assert segment.exchanges == ("x0", "x2", "x3")


async def test_an_answer_that_a_client_joined_to_a_text_of_its_own_does_not_split() -> None:
    """As Qwen Code does, which puts words into the assistant's mouth before its answer."""
    own = Message(role="assistant", text="Got it.")
    c = client(['!{"command": "1"}', "more", "done"])
    one = await c.ask(SYSTEM, TASK, own)
    said = [replace(one, text="Got it."), result(one, "r1")]
    two = await c.ask(SYSTEM, TASK, *said)
    await c.ask(SYSTEM, TASK, *said, two, TASK)
    await c.ask(SYSTEM, TASK, own)
    assert [segment.exchanges for segment in c.segments] == [("x0", "x1", "x2"), ("x3",)]


async def test_an_answer_that_arrived_and_was_edited_is_trained_though_its_connection_broke_later() -> None:
    c = client(["one", "two"])
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, replace(one, text="edited"), TASK)
    c.turns.conversation.turns[0].broken = True
    assert c.texts == ["one", "two"]


CONTROL = [3, CLOSE, 5, BEGIN, 6, 4]
"""The format's own tokens; amid a turn too."""


async def test_ids_are_the_engines_raw_output_control_tokens_included() -> None:
    """vllm#27482, agent-lightning#326: with tools on offer, what a parser makes of a turn takes no token out of it."""
    c = client(['a!{"command": "1"}', "two"])
    c.engine.encode = lambda text: [*CONTROL, *encode(text), *CONTROL]
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, result(one, "r1"))
    (segment,) = c.segments
    assert c.engine.sampled == [
        [*CONTROL, *encode('a!{"command": "1"}'), *CONTROL, CLOSE],
        [*CONTROL, *encode("two"), *CONTROL, CLOSE],
    ]
    assert segment.token_ids[segment.target].tolist() == [token for ids in c.engine.sampled for token in ids]
    assert segment.token_ids.tolist() == c.engine.calls[-1].prompt + c.engine.sampled[-1]


async def test_where_the_format_cannot_go_on_a_segment_opens() -> None:
    renderer = Letters()
    renderer.refuses_to_extend = True
    c = client(["one", "two"], renderer=renderer)
    one = await c.ask(SYSTEM, TASK)
    await c.ask(SYSTEM, TASK, one, TASK)
    assert [segment.exchanges for segment in c.segments] == [("x0",), ("x1",)]
    assert c.texts == ["one", "two"]


TITLE = Message(role="system", text="You are a title generator.")


async def test_a_side_call_is_recorded_and_no_part_of_the_task() -> None:
    """Neither its tokens nor its size: not trained, no turn, no budget, no first prompt."""
    c = client(
        ["a title", "one", "another", "two"],
        side_calls=("title generator",),
        max_turns=2,
        max_response_tokens=12,
        max_prompt_tokens=20,
    )
    title = await c.ask(TITLE, replace(TASK, text="x" * 40))
    one = await c.ask(SYSTEM, TASK)
    await c.ask(TITLE, replace(TASK, text="x" * 40), title, TASK)
    await refused(c.ask(TITLE, TASK))
    await c.ask(SYSTEM, TASK, one, replace(TASK, text="o"))
    assert c.texts == ["onetwo"] and c.turns.termination is None
    assert [turn.side for turn in c.turns.conversation.turns] == [True, False, True, False]
    with pytest.raises(Refusal):
        await c.ask(SYSTEM, TASK)
    assert c.turns.termination is Termination.MAX_TURNS


async def test_a_side_call_that_does_not_fit_ends_nothing() -> None:
    c = client(["one"], side_calls=("title generator",), max_context=40)
    with pytest.raises(ContextOverflow):
        await c.ask(TITLE, replace(TASK, text="x" * 40))
    assert c.turns.termination is None


async def test_what_was_said_in_a_side_call_is_context_where_the_task_goes_on_from_it() -> None:
    c = client(["a title", "one"], side_calls=("title generator$",))
    system = replace(TITLE, text="You are a title generator")
    title = await c.ask(system, TASK)
    await c.ask(system, TASK, title, TASK)
    assert c.segments == ()
    c.turns.side_calls = ()
    await c.ask(system, TASK, title, replace(TASK, text="go on"))
    (segment,) = c.segments
    assert segment.exchanges == ("x0", "x2") and c.texts == ["done"]
    check_routing(segment)


async def test_no_text_of_the_task_makes_a_side_call() -> None:
    c = client(["one"], side_calls=("title generator",))
    await c.ask(SYSTEM, replace(TASK, text=TITLE.text))
    assert c.texts == ["one"]


# ---------------------------------------------------------------- random trees

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["continue", "resample", "edit", "compact", "lose and retry", "fail and retry", "rewrite"]),
        st.integers(0, 50),
        st.sampled_from(["go", 'call!{"command": "ls"}', "", 'bad!{"command']),
    ),
    max_size=14,
)


@settings(max_examples=150)
@given(ACTIONS)
def test_every_sampled_token_is_a_target_exactly_once(actions: list[tuple[str, int, str]]) -> None:
    asyncio.run(_random_tree(actions))


async def _random_tree(actions: list[tuple[str, int, str]]) -> None:
    c = client(["start"])
    histories = [[SYSTEM, TASK]]
    """History up to each answered call's own request."""
    answers = [await c.ask(SYSTEM, TASK)]
    lost: list[int] = []
    for number, (action, pick, text) in enumerate(actions):
        index = pick % len(answers)
        request, answer = histories[index], answers[index]
        said = [result(answer, f"r{number}")] if answer.tool_calls else [Message(role="user", text=f"u{number}")]
        if action == "resample":
            asked = request
        elif action == "edit":
            asked = [*request, replace(answer, text=f"edited {number}"), *said]
        elif action == "compact":
            asked = [SYSTEM, Message(role="user", text=f"summary {number}"), answer, *said]
        elif action == "rewrite":
            calls = tuple(replace(call, arguments=call.arguments.replace(" ", "")) for call in answer.tool_calls)
            asked = [*request, replace(answer, text=answer.text + "\n", tool_calls=calls), *said]
        else:
            asked = [*request, answer, *said]
        if action == "lose and retry":
            c.engine.script.append(text + "lost")
            await c.ask(*asked)
            c.turns.conversation.turns[-1].broken = True
            lost.append(len(c.engine.sampled) - 1)
        if action == "fail and retry":
            c.engine.script.append(engine_failure())
            await refused(c.ask(*asked))
        c.engine.script.append(text)
        answers.append(await c.ask(*asked))
        histories.append(asked)
    sampled: Counter[tuple[int, ...]] = Counter()
    for number, ids in enumerate(c.engine.sampled):
        if number not in lost:
            sampled[tuple(ids)] += 1
    targets: Counter[tuple[int, ...]] = Counter()
    for segment in c.segments:
        assert not segment.target[0]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], segment.target.astype(int), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            targets[tuple(segment.token_ids[start:end].tolist())] += 1
        check_routing(segment)
        assert not segment.logprobs[~segment.target].any()
    assert targets == sampled
