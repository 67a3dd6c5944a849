"""OpenAI Responses: items (a client's input, or an answer's own output) to the messages that all protocols share.

Invariant: the items of one answer, in whatever order they were streamed, are one assistant message again. Adjacent
items of the assistant belong together until a tool's output, another's message, or, after a message that made no call,
the beginning of another turn; items that bear the ids of two answers never do (a client keeps the items that it got of
an answer whose stream broke, and those of the next answer follow them). Refused by name: items that the model cannot
read (images, files, built-in and custom tools' calls, references to stored items, reasoning that was encrypted
elsewhere).
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from engine.wire.messages import Message, Refusal, Role, ToolCall
from engine.wire.openai_fields import array, mapping, named, shown, text, unsupported, wrong_type
from engine.wire.openai_responses_echo import join_name, unseal

_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_OWN_ID = re.compile(r"[a-z]+_(\w+)_\d+")
"""An item's id as this server makes it: its answer's id and its place there."""
_ROLES: dict[str, Role] = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}


def messages(items: Iterable[Any], where: str) -> tuple[Message, ...]:
    """Raises Refusal; `where` is the name of the field that holds the items."""
    history = _History()
    for index, item in enumerate(items):
        place = f"{where}[{index}]"
        kind = mapping(item, place).get("type", "message" if "role" in item else None)
        read = _BY_TYPE.get(kind) if isinstance(kind, str) else None
        if read is None:
            message = f"Unsupported item {shown(kind)} in '{place}': expected one of {', '.join(map(repr, _BY_TYPE))}."
            raise unsupported(f"{place}.type", message)
        history.see(item.get("id"))
        read(history, item, place)
    return tuple(history.finish())


class _History:
    """Messages, and the assistant's that is still growing."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._begun = False
        self._answer = ""
        """The id of the answer whose items these are, once one has told it."""

    def see(self, item_id: Any) -> None:
        """An item's id: one of another answer ends the turn."""
        found = _OWN_ID.fullmatch(item_id) if isinstance(item_id, str) else None
        if found is None:
            return
        if self._answer not in ("", found[1]):
            self._end_turn()
        self._answer = found[1]

    def add(self, message: Message) -> None:
        self._end_turn()
        self._messages.append(message)

    def think(self, reasoning: str) -> None:
        self._begin_item()
        self._reasoning.append(reasoning)

    def say(self, said: str) -> None:
        self._begin_item()
        self._texts.append(said)

    def call(self, call: ToolCall) -> None:
        self._begun = True
        self._calls.append(call)

    def finish(self) -> list[Message]:
        self._end_turn()
        return self._messages

    def _begin_item(self) -> None:
        if self._texts and not self._calls:
            self._end_turn()
        self._begun = True

    def _end_turn(self) -> None:
        if self._begun:
            self._messages.append(
                Message(
                    role="assistant",
                    text="".join(self._texts),
                    reasoning="".join(self._reasoning),
                    tool_calls=tuple(self._calls),
                )
            )
        self._reasoning, self._texts, self._calls, self._begun, self._answer = [], [], [], False, ""


def _message(history: _History, item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    shared = _ROLES.get(role) if isinstance(role, str) else None
    if shared is None:
        message = f"Invalid value for '{where}.role': expected one of {', '.join(map(repr, _ROLES))}."
        raise Refusal(message, param=f"{where}.role", code="invalid_value")
    if item.get("content") is None:
        raise wrong_type(f"{where}.content", "a string or an array of parts")
    said = text(item["content"], f"{where}.content", _PARTS)
    if shared == "assistant":
        history.say(said)
    else:
        history.add(Message(role=shared, text=said))


def _function_call(history: _History, item: dict[str, Any], where: str) -> None:
    namespace = item.get("namespace")
    if not isinstance(namespace, str | None):
        raise wrong_type(f"{where}.namespace", "a string")
    for name in ("name", "arguments"):
        if not isinstance(item.get(name), str):
            raise wrong_type(f"{where}.{name}", "a string")
    call_id = named(item, "call_id", where)
    history.call(ToolCall(id=call_id, name=join_name(namespace or "", item["name"]), arguments=item["arguments"]))


def _function_call_output(history: _History, item: dict[str, Any], where: str) -> None:
    call_id = named(item, "call_id", where)
    if item.get("output") is None:
        raise wrong_type(f"{where}.output", "a string or an array of parts")
    said = text(item["output"], f"{where}.output", _PARTS)
    history.add(Message(role="tool", text=said, tool_call_id=call_id))


def _reasoning(history: _History, item: dict[str, Any], where: str) -> None:
    said = _parts(item, "content", {"reasoning_text": "text", "text": "text"}, where)
    sealed = item.get("encrypted_content")
    if not isinstance(sealed, str | None):
        raise wrong_type(f"{where}.encrypted_content", "a string")
    opened = unseal(sealed) if sealed else ""
    said = said or opened or _parts(item, "summary", {"summary_text": "text"}, where)
    if opened is None and not said:
        message = f"The encrypted content of '{where}' could not be verified: it was not made by this server."
        raise Refusal(message, param=f"{where}.encrypted_content", code="invalid_encrypted_content")
    history.think(said)


def _parts(item: dict[str, Any], name: str, kinds: dict[str, str], where: str) -> str:
    if item.get(name) is None:
        return ""
    return text(array(item[name], f"{where}.{name}"), f"{where}.{name}", kinds)


_BY_TYPE: dict[str, Callable[[_History, dict[str, Any], str], None]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
