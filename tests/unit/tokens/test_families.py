"""Every family that a model's configuration may name: streams that only grow, calls that are read as meant."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from proxy_pieces import TERMINAL, call_text, make_checkpoint, model_info, tagged_call

from engine.tokens import ParsedCall, Renderer, load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer
from engine.wire.messages import Message, ToolCall, arguments_object

ROOT = Path(__file__).parents[3]
TAGGED = ("qwen3.5", "qwen3.6", "qwen3.8")
NAMES = [f"{family}{thinking}" for family in ("qwen3", *TAGGED) for thinking in ("", "-thinking")]
START = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "fix it"}]
ANSWER = "<|im_start|>assistant\n"
OPEN = {"qwen3-thinking": ""} | {f"{family}-thinking": "<think>\n" for family in TAGGED}
"""What follows ANSWER in a prompt; without thinking all close it at once."""
CLOSED = "<think>\n\n</think>\n\n"


class Family:
    """A renderer, and its texts."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.renderer: Renderer = load_renderer(model_info(folder, name))
        self._tokenizer = CheckpointTokenizer(folder)
        self.between = "\n\n" if name.startswith(TAGGED) else "\n"
        """What stands between text and a call."""
        self.opening = ANSWER + OPEN.get(name, CLOSED)

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.asarray(self._tokenizer.encode(text), dtype=np.int32)

    def decode(self, ids: NDArray[np.int32]) -> str:
        return self._tokenizer.decode(ids.tolist())

    def call(self, command: str) -> str:
        return tagged_call(command) if self.name.startswith(TAGGED) else call_text(command)

    def thought(self, thought: str) -> str:
        """A whole block of thinking, as it is sampled."""
        begun = "" if OPEN.get(self.name) == "<think>\n" else "<think>\n"
        return f"{begun}{thought}\n</think>\n\n"

    def parse(self, text: str, tools: Sequence[Any] = (TERMINAL,)) -> Any:
        return self.renderer.parse(self.renderer.render(START, tools), self.encode(text), tools)


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, checkpoint: Path, tagged_checkpoint: Path) -> Family:
    return Family(tagged_checkpoint if request.param.startswith(TAGGED) else checkpoint, request.param)


@pytest.fixture(scope="module", params=[name for name in NAMES if name.startswith(TAGGED)])
def tagged(request: pytest.FixtureRequest, tagged_checkpoint: Path) -> Family:
    return Family(tagged_checkpoint, request.param)


def test_these_are_all_that_a_model_may_name() -> None:
    named = set()
    for schema in (ROOT / "schemas/model").glob("*.json"):
        renderer = json.loads(schema.read_text())["properties"].get("renderer", {})
        named |= set(renderer.get("enum", ()))
    assert named == {name for name in NAMES if "-" not in name} | {"template"}, "test the new one here"


# ---------------------------------------------------------------- streams

TOOL = {"role": "tool", "tool_call_id": "c"}
TAILS: list[list[dict[str, str]]] = [
    [TOOL | {"content": "x.py"}],
    [TOOL | {"content": "1"}, TOOL | {"content": "  2\n"}],
    [{"role": "user", "content": "Really?"}],
    [{"role": "user", "content": "Go on."}],
]


def tail_text(new: Sequence[Mapping[str, str]]) -> str:
    results = "\n".join(
        f"<tool_response>\n{message['content']}\n</tool_response>" for message in new if message["role"] == "tool"
    )
    return f"\n<|im_start|>user\n{results or new[0]['content']}<|im_end|>\n"


def test_four_turns_with_tools_only_grow(family: Family) -> None:
    """Tool tails, a user's tail, a turn that is cut; thinking stays whatever follows it."""
    turns = [
        family.thought("hm") + "Let me look.\n\n" + family.call("ls") + "<|im_end|>",
        family.thought("so") + family.call("a") + "\n" + family.call("b") + "<|im_end|>",
        family.thought("aha") + "It works.<|im_end|>",
        family.thought("yes") + "This is cut in the mid",
    ]
    stream = family.renderer.render(START, [TERMINAL])
    text = family.decode(stream)
    assert text.endswith(family.opening)
    for sampled_text, new in zip(turns, TAILS, strict=True):
        sampled = family.encode(sampled_text)
        tail = family.renderer.extend(stream, sampled, new, [TERMINAL])
        assert tail is not None
        stream = np.concatenate([stream, sampled, tail])
        closed = sampled_text if sampled_text.endswith("<|im_end|>") else sampled_text + "<|im_end|>"
        told = tail_text(new).replace("  2\n\n", "2\n") if family.name.startswith(TAGGED) else tail_text(new)
        text += closed + told + family.opening
        assert family.decode(stream) == text


def test_a_stream_is_what_the_whole_conversation_renders_to(family: Family) -> None:
    """Where the format shows all that was said (no thinking before a later user's message) the ids are its own."""
    thinks = family.name.endswith("-thinking")
    stream = family.renderer.render(START, [TERMINAL])
    history: list[dict[str, Any]] = [*START]
    for number in range(4):
        command = f"ls {number}"
        thought = family.thought(f"hm {number}") if thinks else ""
        sampled = family.encode(f"{thought}Step {number}.{family.between}{family.call(command)}<|im_end|>")
        new = [TOOL | {"content": f"file_{number}.py"}]
        tail = family.renderer.extend(stream, sampled, new, [TERMINAL])
        assert tail is not None
        stream = np.concatenate([stream, sampled, tail])
        function = {"name": "terminal", "arguments": {"command": command}}
        said: dict[str, Any] = {"role": "assistant", "content": f"Step {number}."}
        said |= {"reasoning_content": f"hm {number}"} if thinks else {}
        history += [said | {"tool_calls": [{"id": "c", "type": "function", "function": function}]}, *new]
        assert family.decode(stream) == family.decode(family.renderer.render(history, [TERMINAL]))
        assert stream.tolist() == family.renderer.render(history, [TERMINAL]).tolist()


@pytest.mark.parametrize("text", ["hm", "hm<|im_end|>", "", "<|im_end|>", "Done.<|endoftext|>"])
def test_however_a_turn_ends_the_next_one_follows_it(family: Family, text: str) -> None:
    """Also where thinking was not closed: what was sampled stays, and nothing of it comes twice."""
    prompt, sampled = family.renderer.render(START, [TERMINAL]), family.encode(text)
    for new in ([{"role": "user", "content": "u"}], [{"role": "system", "content": "s"}], TAILS[1]):
        tail = family.renderer.extend(prompt, sampled, new, [TERMINAL])
        assert tail is not None
        told = family.decode(tail)
        assert told.endswith(family.opening) and told.count("<|im_start|>") == 2
        closing = told.partition("\n<|im_start|>")[0]
        assert closing.removeprefix("</think>") == ("" if "<|" in text else "<|im_end|>")


# ---------------------------------------------------------------- system messages


def test_system_messages_may_stand_anywhere(family: Family) -> None:
    """Claude Code says some within the conversation, Codex several at its beginning: none is refused or lost."""
    several = [START[0], {"role": "system", "content": "Be brief."}, START[1], {"role": "system", "content": "Now."}]
    text = family.decode(family.renderer.render(several, [TERMINAL]))
    places = [text.index(said) for said in ("You are helpful.", "Be brief.", "fix it", "Now.")]
    assert places == sorted(places)
    assert text.endswith(family.opening)
    tail = family.renderer.extend(
        family.renderer.render(several, []), family.encode("ok<|im_end|>"), [{"role": "system", "content": "Late."}], []
    )
    assert tail is not None
    role = "user" if family.name.startswith(TAGGED) else "system"
    assert family.decode(tail) == f"\n<|im_start|>{role}\nLate.<|im_end|>\n{family.opening}"
    assert f"<|im_start|>{role}\nNow.<|im_end|>" in text, "the same form in a prompt and after a turn"


# ---------------------------------------------------------------- calls


def good(command: str) -> ParsedCall:
    return ParsedCall(name="terminal", arguments=json.dumps({"command": command}), well_formed=True)


def test_parses_text_reasoning_and_parallel_calls(family: Family) -> None:
    turn = family.parse(f"{family.thought('hm')}Look.\n{family.call('ls')}\n{family.call('pwd')}<|im_end|>")
    assert (turn.content, turn.reasoning, turn.calls) == ("Look.", "hm", (good("ls"), good("pwd")))


@pytest.mark.parametrize("end", ["", "\n</think>\n\n"])
def test_a_call_within_the_thinking_is_not_lost(family: Family, end: str) -> None:
    begun = family.thought("hm").partition("\n</think>")[0]
    turn = family.parse(f"{begun} {family.call('ls')}{end}<|im_end|>")
    assert (turn.content, turn.reasoning, turn.calls) == ("", "hm", (good("ls"),))


def test_a_call_that_is_only_thought_of_stays_thought(family: Family) -> None:
    for after, calls in ((family.call("pwd"), (good("pwd"),)), ("No, I am done.", ())):
        turn = family.parse(f"{family.thought('perhaps ' + family.call('ls'))}{after}<|im_end|>")
        assert turn.calls == calls
        assert family.call("ls") in turn.reasoning


def test_a_call_cut_by_the_limit_is_a_malformed_call(family: Family) -> None:
    whole = family.thought("hm") + family.call("ls -la")
    for cut in (whole.index("ls -la") + 4, whole.index("</tool_call>")):
        (call,) = family.parse(whole[:cut]).calls
        assert call.name == "terminal" and "ls -" in call.arguments


def block(inside: str) -> str:
    return f"<tool_call>\n<function=terminal>\n{inside}\n</function>\n</tool_call><|im_end|>"


@pytest.mark.parametrize(
    "inside",
    [
        "<parameter=command>\nls",
        "<parameter=command\nls\n</parameter>",
        "<parameter=command>\nls\n</paramet>",
        "<parameter=command>\nls\n</parameter>\n<parameter=timeout>\n5",
        "<parameter>\nls\n</parameter>",
    ],
)
def test_a_damaged_parameter_makes_a_malformed_call_and_no_empty_one(tagged: Family, inside: str) -> None:
    """Never `{}`, nor the rest of the arguments as if it were all."""
    (call,) = tagged.parse(tagged.thought("hm") + block(inside)).calls
    assert call == ParsedCall(
        name="terminal", arguments=f"<function=terminal>\n{inside}\n</function>", well_formed=False
    )


def test_a_call_without_parameters_is_whole(tagged: Family) -> None:
    for text in (block(""), block("").replace("\n\n", "\n")):
        assert tagged.parse(tagged.thought("hm") + text).calls == (
            ParsedCall(name="terminal", arguments="{}", well_formed=True),
        )


def test_indentation_of_an_argument_is_kept(tagged: Family) -> None:
    """An editor is given the very lines."""
    code = "    return a - b\n\n        # why  \n"
    (call,) = tagged.parse(tagged.thought("hm") + tagged.call(code)).calls
    assert json.loads(call.arguments) == {"command": code}


def test_values_are_read_by_the_tools_schema(tagged: Family) -> None:
    """A text that its schema does not call one is a text all the same; numbers and lists are what they are."""
    properties = {
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "number": {"type": "integer"},
        "list": {"type": "array"},
        "any": {},
    }
    tool = {"type": "function", "function": {"name": "terminal", "parameters": {"properties": properties}}}
    written = {
        "text": "5",
        "maybe": "some words",
        "number": "5",
        "list": "[1, 2]",
        "any": "  x < y",
        "new": "no schema",
    }
    inside = "\n".join(f"<parameter={key}>\n{value}\n</parameter>" for key, value in written.items())
    (call,) = tagged.parse(tagged.thought("hm") + block(inside), [tool]).calls
    assert call.well_formed
    assert json.loads(call.arguments) == written | {"number": 5, "list": [1, 2]}


def test_tags_within_an_argument_of_json_are_its_text(checkpoint: Path) -> None:
    family = Family(checkpoint, "qwen3")
    command = "<function=x>\n<parameter=a>\n1"
    assert family.parse(family.call(command) + "<|im_end|>").calls == (good(command),)


def test_any_token_sequence_parses(family: Family) -> None:
    random = np.random.default_rng(0)
    marks = family.encode("<tool_call></tool_call><think></think><|im_end|><function=terminal><parameter=command>")
    prompt = family.renderer.render(START, [TERMINAL])
    for _ in range(40):
        ids = random.integers(0, 300, 30)
        ids[random.integers(0, 30, 12)] = random.choice(marks, 12)
        turn = family.renderer.parse(prompt, ids.astype(np.int32), [TERMINAL])
        (turn.content + turn.reasoning + "".join(call.name + call.arguments for call in turn.calls)).encode()
        assert family.renderer.extend(prompt, ids.astype(np.int32), TAILS[0], [TERMINAL]) is not None


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "template:qwen3"])
def test_a_call_that_was_cut_within_a_character_can_be_rendered_again(tmp_path: Path, name: str) -> None:
    """Half a surrogate pair, escaped as every serialiser does it: kept by a compaction, it may not end the trial."""
    renderer = load_renderer(model_info(make_checkpoint(tmp_path), name))
    call = ToolCall(id="c", name="terminal", arguments='{"command": "echo \\ud83d"}')
    assert arguments_object(call.arguments) == {"command": "echo \ufffd"}
    said = [Message(role="user", text="u"), Message(role="assistant", text="", tool_calls=(call,))]
    chat = [message.to_chat() for message in (*said, Message(role="tool", text="r", tool_call_id="c"))]
    assert len(renderer.render(chat, (TERMINAL,)))


@pytest.mark.parametrize("written", ['{"a": 1e999, "b": "\\ud83d"}', '{"a": NaN}', '{"a": [-Infinity]}'])
def test_what_json_has_no_number_for_is_no_object(written: str) -> None:
    assert arguments_object(written) is None
