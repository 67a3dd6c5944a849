"""What the branches of a conversation tree mean: sub-agents, compactions, dropped turns; and none is lost."""

from typing import Any

from atif_pieces import Told, check_tokens, result, says, system, user
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.observe.atif.calls import read_calls
from engine.observe.atif.threads import threads

TASK = [system("You mend."), user("Mend add.")]
Shape = tuple[str, list[int], str | None, str]


def shape(told: Told) -> list[Shape]:
    """Kind, numbers of the calls, the call after which it began, and the tool call that started it."""
    return [
        (one.kind, [call.number for call in one.calls], one.anchor and one.anchor.id, one.tool_call)
        for one in threads(read_calls(told.row()["exchanges"]))
    ]


def test_parallel_sub_agents_belong_to_the_calls_that_started_them() -> None:
    told = Told()
    start = told.call(None, TASK, says("", a={"prompt": "Look here."}, b={"prompt": "Look there."}))
    there = told.call(None, [system("You look."), user("Reminders\nLook there.")], says("", c={"command": "ls"}))
    here = told.call(None, [system("You look."), user("Look here.")], says("Nothing."))
    told.call(there, [result("c", "calc")], says("One file."))
    told.call(start, [result("a", "Nothing."), result("b", "One file.")], says("Done."))
    assert shape(told) == [
        ("main", [0, 4], None, ""),
        ("sub_agent", [1, 3], "x0", "b"),
        ("sub_agent", [here], "x0", "a"),
    ]
    (document,) = told.documents().values()
    given_back = document["steps"][2]["observation"]["results"]
    assert [(one["source_call_id"], one["subagent_trajectory_ref"][0]["trajectory_id"]) for one in given_back] == [
        ("a", "e0-t-s0-a0.x2"),
        ("b", "e0-t-s0-a0.x1"),
    ]


def test_a_sub_agent_whose_text_is_not_its_calls_is_known_by_when_it_ran() -> None:
    told = Told()
    start = told.call(None, TASK, says("", a={"name": "reviewer"}))
    told.call(None, [user("Review what was done.")], says("Fine."))
    told.call(start, [result("a", "Fine.")], says("Done."))
    assert shape(told) == [("main", [0, 2], None, ""), ("sub_agent", [1], "x0", "a")]


def test_a_sub_agent_that_was_cut_off_with_its_trial_is_known_by_its_text() -> None:
    told = Told()
    told.call(None, TASK, says("", a={"prompt": "Look here."}))
    told.call(None, [user("Look here.")], says("", c={"command": "ls"}))
    assert shape(told) == [("main", [0], None, ""), ("sub_agent", [1], "x0", "a")]
    (document,) = told.documents().values()
    (asked,) = document["steps"][2]["observation"]["results"]
    assert asked["source_call_id"] == "a"
    assert "content" not in asked, "its result never came"


def compacted(told: Told, start: list[Any], fork: bool) -> None:
    """Two turns, a summary that is a fork of them or stands alone, and two turns that begin with it."""
    first = told.call(None, start, says("", a={"command": "ls"}))
    told.call(first, [result("a", "calc")], says("", b={"command": "cat"}))
    summary = "<summary>Files were listed.</summary>"
    if fork:
        told.call(first, [result("a", "calc"), user("Sum up.")], says(f"<analysis>…</analysis>{summary}"))
    else:
        told.call(None, [system("You sum up."), user("All that was said. Sum up.")], says(summary))
    again = told.call(
        None,
        [*start, user("Before: Files were listed."), says("", b={"command": "cat"}), result("b", "code")],
        says("", d={"command": "sed"}),
    )
    told.call(again, [result("d", "")], says("Done."))


def test_a_compaction_is_a_summary_and_a_continuation() -> None:
    for fork in (False, True):
        told = Told()
        compacted(told, TASK, fork)
        assert shape(told) == [
            ("main", [0, 1], None, ""),
            ("summary", [2], "x1", ""),
            ("continuation", [3, 4], "x1", ""),
        ]
        first, second = told.documents().items()
        assert (first[0], second[0]) == ("e0-t-s0-a0.json", "e0-t-s0-a0.cont-1.json")
        assert first[1]["continued_trajectory_ref"] == "e0-t-s0-a0.cont-1.json"
        assert "continued_trajectory_ref" not in second[1]
        assert [step.get("is_copied_context") for step in second[1]["steps"]] == [None, None, None, True, None, None]
        (inner,) = first[1]["subagent_trajectories"]
        assert inner["extra"] == {"kind": "summary"}
        assert [step.get("is_copied_context") for step in inner["steps"]][-2:] == [None, None]
        check_tokens(told.exchanges, told.documents())


def test_two_compactions_are_three_files() -> None:
    told = Told()
    for number in range(3):
        told.call(None, [*TASK, user(f"Before: notes {number}.")], says("", a={"command": str(number)}))
        if number < 2:
            told.call(None, [user(f"Sum up {number}.")], says(f"notes {number + 1}."))
    assert [kind for kind, *_ in shape(told)] == ["main", "summary", "continuation", "summary", "continuation"]
    assert list(told.documents()) == [f"e0-t-s0-a0{part}.json" for part in ("", ".cont-1", ".cont-2")]


def test_a_compaction_inside_a_sub_agent_stays_inside() -> None:
    told = Told()
    start = told.call(None, TASK, says("", z={"prompt": "Look."}))
    compacted(told, [user("Look.")], fork=False)
    told.call(start, [result("z", "Done.")], says("All done."))
    assert shape(told) == [
        ("main", [0, 6], None, ""),
        ("sub_agent", [1, 2], "x0", "z"),
        ("summary", [3], "x0", "z"),
        ("continuation", [4, 5], "x0", "z"),
    ]
    (document,) = told.documents().values()
    assert [inner["extra"]["kind"] for inner in document["subagent_trajectories"]] == [
        "sub_agent",
        "summary",
        "continuation",
    ]


def test_a_sub_agent_outlives_a_compaction_of_its_owner() -> None:
    """claude-code#32099: its turns and its result are not lost with the history that started it."""
    told = Told()
    told.call(None, TASK, says("", z={"prompt": "Look."}))
    looks = told.call(None, [user("Look.")], says("", a={"command": "ls"}))
    told.call(None, [user("Sum up.")], says("Notes."))
    again = told.call(None, [*TASK, user("Before: Notes.")], says("", d={"command": "sed"}))
    told.call(looks, [result("a", "x.py")], says("Found."))
    told.call(again, [result("d", ""), user("It says: Found.")], says("Done."))
    assert shape(told) == [
        ("main", [0], None, ""),
        ("sub_agent", [1, 4], "x0", "z"),
        ("summary", [2], "x0", ""),
        ("continuation", [3, 5], "x0", ""),
    ]
    check_tokens(told.exchanges, told.documents())


def test_a_turn_that_its_harness_dropped_is_a_branch() -> None:
    told = Told()
    told.call(None, TASK, says("no call"))
    first = told.call(None, [*TASK, user("Call a tool.")], says("", a={"command": "ls"}))
    told.call(first, [result("a", "calc")], says("no call again"))
    told.call(first, [result("a", "calc"), user("Call a tool.")], says("", b={"command": "true"}))
    assert shape(told) == [
        ("branch", [0], "x1", ""),
        ("main", [1, 3], None, ""),
        ("branch", [2], "x1", ""),
    ]
    check_tokens(told.exchanges, told.documents())


def test_a_request_that_came_twice_goes_on_with_its_last_answer() -> None:
    told = Told()
    first = told.call(None, TASK, says("", a={"command": "ls"}))
    told.call(first, [result("a", "calc")], says("Once."))
    told.call(first, [result("a", "calc")], says("Twice."))
    assert shape(told) == [("main", [0, 2], None, ""), ("branch", [1], "x0", "")]


def test_forks_that_run_at_once_are_branches_of_the_one_that_goes_on() -> None:
    told = Told()
    first = told.call(None, TASK, says("", a={"command": "ls"}))
    one = told.call(first, [result("a", "calc"), user("Left.")], says("", b={"command": "l"}))
    other = told.call(first, [result("a", "calc"), user("Right.")], says("", c={"command": "r"}))
    told.call(other, [result("c", "")], says("Right done."))
    told.call(one, [result("b", "")], says("Left done."))
    assert shape(told) == [("main", [0, 1, 4], None, ""), ("branch", [2, 3], "x1", "")]


def test_a_request_that_came_three_times_hangs_on_no_thread_of_its_own() -> None:
    """The last hears what the first handed to a tool, and the first hangs on the last."""
    told = Told()
    told.call(None, [user("a")], says("a", c0={"prompt": "a"}))
    told.call(None, [user("a")], says(""))
    told.call(None, [user("a")], says(""))
    assert [kind for kind, *_ in shape(told)] == ["branch", "branch", "main"]
    check_tokens(told.exchanges, told.documents())


def test_an_agent_that_was_asked_again_within_what_it_had_started_is_told_once() -> None:
    """Each of the guesses is sound, and together they would hold one another: there is always a main thread."""
    told = Told()
    told.call(None, TASK, says("", a={"prompt": "Look here."}))
    inner = told.call(None, [user("Look here.")], says("", b={"prompt": "x"}))
    told.call(None, TASK, says(""))
    told.call(inner, [result("b", "")], says("Done."))
    assert [kind for kind, *_ in shape(told)].count("main") == 1
    check_tokens(told.exchanges, told.documents())


TEXTS = st.sampled_from(["", "a", "a b", "<summary>a</summary>", "Look here."])
CALLS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["policy", "policy", "policy", "side", "discarded"]),
        TEXTS,
        TEXTS,
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(CALLS)
def test_whatever_the_tree_each_sampled_token_is_told_once(drawn: list[tuple[int, str, str, str, bool, bool]]) -> None:
    told = Told()
    for number, (chosen, kind, heard, said, calls, answers) in enumerate(drawn):
        parent = chosen - 1 if 0 < chosen <= number else None
        history = [result(f"c{parent}", heard)] if answers and parent is not None else [user(heard)]
        told.call(parent, history, says(said, **({f"c{number}": {"prompt": said}} if calls else {})), kind)
    check_tokens(told.exchanges, told.documents())
