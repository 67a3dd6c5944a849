"""From the conversation tree of a trial to threads: what one agent did without its history being rewritten.

    main            the agent that the harness started
    continuation    the same agent after its history was rewritten: what follows a compaction
    sub_agent       one that a tool call of an earlier thread started
    summary         the calls that wrote the text with which a later thread begins
    branch          an answer beside the one that the conversation went on with, or a fork that ran at the same time

The store holds the tree, not the meaning of its branches, so the meaning is read from order and texts: a sub-agent
begins with a text that an earlier call handed to a tool, or runs wholly between a call and the next one of the same
thread; a continuation begins when the thread before it has ended. Invariant: every trained call is in exactly one
thread, whatever that thread is taken for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.observe.atif.calls import Call, path_to
from engine.wire.messages import arguments_object

Kind = Literal["main", "continuation", "sub_agent", "summary", "branch"]
_SUMMARY = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)


@dataclass(eq=False)
class Thread:
    """Calls of which each continues the one before."""

    before: tuple[Call, ...]
    """The calls that its first one continues: they belong to other threads."""
    calls: list[Call]
    kind: Kind = "main"
    owner: "Thread | None" = None
    """The thread that it was started from; of a continuation the part before it."""
    anchor: Call | None = None
    """The call of `owner` after which it began."""
    tool_call: str = ""
    """Id of the anchor's tool call that started it, where that is known."""
    next: "Thread | None" = None
    """Its continuation."""
    children: "list[Thread]" = field(default_factory=list)
    """Threads that were started from it, `next` not among them; a sub-agent's continuations are its owner's too."""

    @property
    def first(self) -> Call:
        return self.calls[0]

    @property
    def last(self) -> Call:
        return self.calls[-1]

    @property
    def root(self) -> bool:
        """Whether it begins with a history of its own."""
        return not self.before


def threads(calls: Sequence[Call]) -> list[Thread]:
    """All threads of a trial, in the order in which they began; one of them is the main one, unless there is none."""
    found = _cut(calls)
    _name(found)
    _part_circles(found)
    for thread in found:
        if thread.owner is not None and thread.owner.next is not thread:
            thread.owner.children.append(thread)
    return found


def _cut(calls: Sequence[Call]) -> list[Thread]:
    by_id = {call.id: call for call in calls}
    follower = _followers(calls)
    holder: dict[str, Thread] = {}
    found = []
    for call in calls:
        if not call.trained:
            continue
        parent = call.row["parent"]
        if parent in holder and follower.get(parent) is call:
            thread = holder[parent]
            thread.calls.append(call)
        else:
            thread = Thread(before=path_to(call, by_id)[:-1], calls=[call])
            found.append(thread)
        holder[call.id] = thread
    return found


def _followers(calls: Sequence[Call]) -> dict[str, Call]:
    """Call → the one that its thread goes on with: the first after it, unless that one led nowhere (it was asked again,
    or its harness dropped it from the history) and a later one does not merely sum up."""
    found: dict[str, Call] = {}
    continued = {call.row["parent"] for call in calls if call.trained}
    roots = [call for call in calls if call.trained and call.row["parent"] is None]
    for call in calls:
        parent = call.row["parent"]
        if not call.trained or parent is None:
            continue
        earlier = found.get(parent)
        if earlier is None or (earlier.id not in continued and not _passed_on(call, roots)):
            found[parent] = call
    return found


def _part_circles(found: Sequence[Thread]) -> None:
    """Where guesses contradict each other (an agent that was asked again within what it had started), the first of the
    threads that hold one another is the main one's own."""
    main = next((thread for thread in found if thread.kind == "main"), None)
    for thread in found:
        seen: list[Thread] = []
        holder: Thread | None = thread
        while holder is not None and holder not in seen:
            seen.append(holder)
            holder = holder.owner
        if holder is None:
            continue
        thread.tool_call = ""
        if main is None:
            thread.kind, thread.owner, thread.anchor, main = "main", None, None, thread
        else:
            _hang(thread, "branch", main)


# ---------------------------------------------------------------- what each is


def _name(found: Sequence[Thread]) -> None:
    open_: list[Thread] = []
    """Those that are no sub-agents and did not run beside others."""
    for number, thread in enumerate(found):
        earlier = [other for other in found[:number] if other.owner is not thread]
        again = _asked_again(thread, found[number + 1 :])
        if again is not None:
            _hang(thread, "branch", again)
            continue
        if thread.root and _started_by_a_call(thread, earlier, found[number + 1 :]):
            continue
        holder = _holder(thread, earlier)
        if holder is not None and _beside(thread, holder):
            _hang(thread, "branch", holder)
        else:
            open_.append(thread)
    current = None
    for number, thread in enumerate(open_):
        if current is None:
            current = thread
        elif _passed_on(thread.last, [later.first for later in open_[number + 1 :]]):
            _hang(thread, "summary", _holder(thread, found) or current)
        else:
            thread.kind, thread.owner, thread.anchor = "continuation", current, current.last
            current.next = current = thread


def _asked_again(thread: Thread, later: Sequence[Thread]) -> Thread | None:
    """Of a first call that led nowhere: the thread that begins with all that it was told, and not with a summary."""
    if not thread.root or len(thread.calls) > 1:
        return None
    told = thread.first.messages
    for number, other in enumerate(later):
        if other.root and other.first.messages[: len(told)] == told:
            summed_up = any(_passed_on(between.last, [other.first]) for between in later[:number])
            return None if summed_up else other
    return None


def _holder(thread: Thread, others: Sequence[Thread]) -> Thread | None:
    """The thread that it forks from."""
    if thread.root:
        return None
    return next((other for other in others if thread.before[-1] in other.calls), None)


def _beside(thread: Thread, holder: Thread) -> bool:
    """Whether a fork ran while its holder went on, asked for the same answer again, or is a sub-agent's own."""
    again = any(call.said == thread.first.said for call in holder.calls)
    return again or holder.kind == "sub_agent" or thread.first.number < holder.last.number


def _hang(thread: Thread, kind: Kind, owner: Thread) -> None:
    earlier = [call for call in owner.calls if call.number < thread.first.number]
    thread.kind, thread.owner, thread.anchor = kind, owner, earlier[-1] if earlier else owner.first


def _started_by_a_call(thread: Thread, earlier: Sequence[Thread], later: Sequence[Thread]) -> bool:
    """Whether an earlier call started the thread, or the agent that it goes on with; notes which."""
    told = _told(thread, earlier)
    around = max(_around(thread, earlier), key=lambda one: one[1].number, default=None)
    found = told or around
    if found is None:
        return False
    thread.kind, (thread.owner, thread.anchor, thread.tool_call) = "sub_agent", found
    before = [other for other in earlier if other.anchor is thread.anchor and other.last.number < thread.first.number]
    if told is None and before and thread.tool_call:
        summed_up = _passed_on(thread.last, [other.first for other in later])
        thread.kind = "summary" if summed_up else "continuation"
    return True


def _told(thread: Thread, earlier: Sequence[Thread]) -> tuple[Thread, Call, str] | None:
    """The newest call that handed a tool the text with which the thread begins."""
    history = thread.first.messages
    known = {call.id for message in history for call in message.tool_calls}
    heard = [message.text.strip() for message in history if message.role == "user"]
    made = sorted(((call, owner) for owner in earlier for call in owner.calls), key=lambda one: -one[0].number)
    if any(one.id in known for call, _ in made for one in call.made()):
        return None  # it goes on with what an earlier thread did
    for call, owner in made:
        for one in call.made() if call.number < thread.first.number else ():
            given = [text.strip() for text in _strings(arguments_object(one.arguments) or {})]
            if any(_begins(heard, text) for text in given if text):
                return owner, call, one.id
    return None


def _begins(heard: Sequence[str], text: str) -> bool:
    """Whether a message is the text, or ends with it after what the harness says to each agent."""
    return any(message == text or message.endswith(f"\n{text}") for message in heard)


def _strings(arguments: Mapping[str, Any]) -> Iterator[str]:
    return (value for value in arguments.values() if isinstance(value, str))


def _around(thread: Thread, earlier: Sequence[Thread]) -> Iterator[tuple[Thread, Call, str]]:
    """Calls of tools between which and the next call of their thread all of this thread ran."""
    for owner in earlier:
        for call, following in zip(owner.calls, owner.calls[1:], strict=False):
            if call.number < thread.first.number and thread.last.number < following.number and call.answer.tool_calls:
                made = call.answer.tool_calls
                yield owner, call, made[0].id if len(made) == 1 else ""


def _passed_on(call: Call, firsts: Sequence[Call]) -> bool:
    """Whether a later thread, by its first call, begins with what this call wrote."""
    answer = call.answer
    written = [answer.text.strip(), *(text.strip() for text in _SUMMARY.findall(answer.text))]
    if answer.tool_calls or not written[0]:
        return False
    return any(
        text in message.text
        for first in firsts
        if first.number > call.number
        for message in first.messages
        if message.role != "system"
        for text in written
        if text
    )
