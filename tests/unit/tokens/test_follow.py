"""What is told of a turn while it is sampled, against what is read in it when it is whole."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_pieces import TERMINAL, call_text, model_info, tagged_call

from engine.tokens import ParsedCall, ParsedTurn, Piece, Renderer, load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

START = [{"role": "user", "content": "fix it"}]
CALL, TAGGED_CALL = call_text("ls"), tagged_call("ls")
Told = list[list[Piece | ParsedCall]]


class Reader:
    """A renderer, and turns fed to it in any portions."""

    def __init__(self, folder: Path, name: str) -> None:
        self.renderer: Renderer = load_renderer(model_info(folder, name))
        self.tokenizer = CheckpointTokenizer(folder)
        self.tools = [] if name == "template" else [TERMINAL]

    def follow(
        self, ids: Sequence[int], sizes: Sequence[int], *, calls: bool = True
    ) -> tuple[ParsedTurn, ParsedTurn, Told]:
        """The turn as it was told, as it is read when it is whole, and what each portion told."""
        prompt = self.renderer.render(START, self.tools)
        follower = self.renderer.follow(prompt, self.tools, calls=calls)
        assert follower is not None
        told, start = [], 0
        for size in [*sizes, len(ids)]:
            told.append(list(follower.feed(ids[start : start + size])))
            start += size
        whole = self.renderer.parse(prompt, np.asarray(ids, np.int32), self.tools)
        said, rest = follower.finish(whole)
        told.append(list(rest))
        pieces = [piece for portion in told for piece in portion]
        assert text_of(pieces, "content") == said.content and text_of(pieces, "reasoning") == said.reasoning
        assert tuple(piece for piece in pieces if isinstance(piece, ParsedCall)) == said.calls
        kinds = ["call" if isinstance(piece, ParsedCall) else piece.kind for piece in pieces]
        assert "reasoning" not in kinds[len(kinds) - kinds[::-1].index("content") :] if "content" in kinds else True
        return said, whole, told


def text_of(pieces: Sequence[Piece | ParsedCall], kind: str) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Piece) and piece.kind == kind)


NAMES = ["qwen3", "qwen3-thinking", "qwen3.5", "qwen3.5-thinking", "template"]


@pytest.fixture(scope="module")
def reader(checkpoint: Path, tagged_checkpoint: Path) -> Any:
    return cache(lambda name: Reader(tagged_checkpoint if name.startswith("qwen3.") else checkpoint, name))


FORMS = [
    "Hello there, all is well.<|im_end|>",
    "  \n Spaces  \n\n within, and after. \n<|im_end|>",
    "<think>\nI wonder.\n</think>\n\nYes.<|im_end|>",
    "\n<think>cut in the middle  ",
    "I wonder.\n</think>\n\nYes é 😀 日本.<|im_end|>",
    f"Look.\n{CALL}\n{CALL}<|im_end|>",
    f"<think>\nhm\n</think>\n\n{CALL}<|im_end|>",
    f"<think>\nhm {CALL}",
    f"Look.\n{TAGGED_CALL}\n{TAGGED_CALL}\nlater<|im_end|>",
    f"hm\n</think>\n\n{TAGGED_CALL[:-30]}</tool_call><|im_end|>",
    f"hm {TAGGED_CALL}\n</think>\n\n{TAGGED_CALL[:40]}",
    "a < b, a <| b, <|im_e and <|im_end",
    "",
    "<|im_end|>",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", FORMS)
def test_a_turn_is_told_as_it_is_read(reader: Any, name: str, text: str) -> None:
    read = reader(name)
    ids = read.tokenizer.encode(text)
    for sizes in ([1] * len(ids), [3] * (len(ids) // 3), []):
        for calls in (False, True):
            said, whole, _ = read.follow(ids, sizes, calls=calls)
            assert said == whole


def test_text_comes_with_its_tokens_and_no_sooner_than_it_is_certain(reader: Any) -> None:
    read = reader("qwen3")
    ids = [token for letter in "ab <|im" for token in read.tokenizer.encode(letter)]
    _, _, told = read.follow(ids, [1] * len(ids))
    assert [text_of(portion, "content") for portion in told] == ["a", "b", "", "", "", "", "", "", " <|im"]
    bytes_of_emoji = read.tokenizer.encode("😀")
    assert len(bytes_of_emoji) == 4
    _, _, told = read.follow([*bytes_of_emoji, *read.tokenizer.encode("<|im_end|>")], [1] * 5)
    assert [text_of(portion, "content") for portion in told] == ["", "", "", "😀", "", "", ""]


@pytest.mark.parametrize(("name", "call"), [("qwen3", CALL), ("qwen3.5", TAGGED_CALL)])
def test_calls_are_told_once_closed_if_they_may(reader: Any, name: str, call: str) -> None:
    read = reader(name)
    ids = read.tokenizer.encode(f"Look.\n{call}\n{call}<|im_end|>")
    for calls, expected in ((True, [1, 1, 0]), (False, [0, 0, 2])):
        _, _, told = read.follow(ids, [1] * len(ids), calls=calls)
        counts = [sum(isinstance(piece, ParsedCall) for piece in portion) for portion in told]
        early = [count for count in counts[:-1] if count]
        assert [*early, counts[-1]] == [count for count in expected[:-1] if count] + [expected[-1]]


def test_calls_within_the_reasoning_wait(reader: Any) -> None:
    """They may be drafts, which an explicit end of the reasoning tells."""
    read = reader("qwen3")
    draft = read.tokenizer.encode(f"<think>\nhm {CALL} no\n</think>\n\nDone.<|im_end|>")
    said, whole, told = read.follow(draft, [1] * len(draft))
    assert said == whole and said.calls == () and not any(isinstance(p, ParsedCall) for part in told for p in part)


def test_formats_with_marks_in_plain_text_are_not_followed(checkpoint: Path) -> None:
    renderer = load_renderer(model_info(checkpoint, "template:qwen3"))
    assert renderer.follow(renderer.render(START, [TERMINAL]), [TERMINAL], calls=True) is None


def test_a_character_that_a_stray_mark_cuts_goes_on_beyond_it(reader: Any) -> None:
    """A family's reader drops the mark, and the bytes on both sides are a character then."""
    for name in NAMES:
        read = reader(name)
        ids = read.tokenizer.encode("é😀")
        for at in range(1, len(ids)):
            for mark in ("<think>", "<|im_start|>", "</think>", "<tool_call>"):
                said, whole, _ = read.follow([*ids[:at], *read.tokenizer.encode(mark), *ids[at:]], [], calls=False)
                assert said == whole, (name, at, mark)


PARTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<|im_",
    "<|im_end|",
    "\n",
    "  ",
    "ok",
    CALL,
    TAGGED_CALL,
]
PARTS += ["é😀", "<", '{"name": "terminal"}', "<tool_response>", "\ufffd"]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(PARTS), max_size=9), st.lists(st.integers(1, 5), max_size=30), st.booleans(), st.randoms()
)
def test_whatever_is_sampled_nothing_is_taken_back(
    reader: Any, parts: list[str], sizes: list[int], calls: bool, random: Any
) -> None:
    """And nothing is lost: of any ids, in any portions, all that is read is told."""
    for name in NAMES:
        read = reader(name)
        ids = [token for part in parts for token in read.tokenizer.encode(part)]
        if random.random() < 0.3:
            random.shuffle(ids)
        said, whole, _ = read.follow(ids, sizes, calls=calls)
        assert said == whole, (name, parts)
