"""The tokeniser of lines: exact, deterministic, and the same token for a line wherever it stands."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from engine.core.specs import ModelInfo
from engine.tokens import load_renderer
from engine.train.tiny.lines import LineSettings, write_line_tokenizer
from engine.train.tiny.phrases import shared_runs
from engine.train.tiny.tokenizer import CONTROL, MARKUP
from engine.train.tiny.weights import Shape, write_config

SETTINGS = LineSettings(
    separators=("\n", '"', "`", '": "', '", "', "\t", "\\", "/testbed/"),
    vocabulary=1024,
    phrases=0.5,
    min_frequency=2,
    merges=64,
)
LINES = (
    "if item > limit:",
    "return total + item",
    'name = "a"',
    "x = re.split(r'\\n', text)",
    "y = re.match(r'\\d', x)",
    "y" * 2000,
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "file_editor",
            "description": "Edit a file.\n* `str_replace` replaces text.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def call(line: str) -> str:
    arguments = {"command": "str_replace", "path": "/testbed/a.py", "old_str": line, "new_str": line}
    return f"<tool_call>\n{json.dumps({'name': 'file_editor', 'arguments': arguments})}\n</tool_call><|im_end|>"


def conversation(line: str) -> str:
    system = "<|im_start|>system\nYou fix bugs.\nChange one line alone.<|im_end|>\n"
    user = f"<|im_start|>user\nThe fault is in this line:\n\n{line}\n\nIt is in `a.py`.<|im_end|>\n"
    return f"{system}{user}<|im_start|>assistant\n<think>\n\n</think>\n\n{call(line)}"


TEXTS = [conversation(line) for line in LINES] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines")
    write_line_tokenizer(path, TEXTS, SETTINGS, 2048)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_same_texts_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_line_tokenizer(tmp_path, iter(TEXTS), SETTINGS, 2048)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("line", LINES)
def test_a_line_has_the_same_tokens_in_every_surrounding(tokenizer: Tokenizer, line: str) -> None:
    """Between newlines, behind indentation, at the end, quoted in a call: escapes differ, what is between does not."""
    own = tokenizer.encode(line).tokens
    quoted = [token.replace('\\"', '"').replace("\\\\", "\\") for token in own]
    for text in (f"a\n{line}\nb", f"a\n        {line}\nb", f"a\n\t{line}", f"The fault is in this line:\n\n{line}"):
        tokens = tokenizer.encode(text).tokens
        assert any(tokens[place : place + len(own)] == own for place in range(len(tokens))), tokens
    for text in (call(line), json.dumps({"old_str": f"    {line}\n"})):
        tokens = [token.replace('\\"', '"').replace("\\\\", "\\") for token in tokenizer.encode(text).tokens]
        assert any(tokens[place : place + len(own)] == quoted for place in range(len(tokens))), tokens


def test_plain_lines_are_one_token_however_long(tokenizer: Tokenizer) -> None:
    for line in (LINES[0], LINES[1], LINES[5]):
        assert len(tokenizer.encode(line).ids) == 1


def test_what_all_conversations_share_is_one_token_and_their_lines_are_not_in_it(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("system\nYou fix bugs.\nChange one line alone.").ids) == 1
    frame = '\n{"name": "file_editor", "arguments": {"command": "str_replace", "path": "/testbed/a.py", "old_str": "'
    assert tokenizer.encode(call(LINES[0])).tokens[1:3] == [*tokenizer.encode(frame).tokens, spelt(LINES[0])]


def spelt(text: str) -> str:
    return text.replace(" ", "Ġ")


def test_a_shared_run_never_cuts_a_line_in_two(tokenizer: Tokenizer) -> None:
    """`You fix bugs.` begins a shared run; within a longer line it is only letters."""
    whole = tokenizer.encode("system\nYou fix bugs.\nChange one line alone.").ids
    assert tokenizer.encode("a system\nYou fix bugs.\nChange one line alone.").ids[-1:] != whole
    assert tokenizer.encode("system\nYou fix bugs.\nChange one line alone. Now").ids[:1] != whole


def test_any_text_survives(folder: Path, tokenizer: Tokenizer) -> None:
    full = AutoTokenizer.from_pretrained(folder)
    source = random.Random(7)
    alphabet = [
        "\n",
        "\\n",
        '"',
        '\\"',
        "`",
        "\t",
        "    ",
        " ",
        "é",
        "数",
        "🐍",
        "\u2028",
        "\x00",
        "\r",
        "/testbed/",
        "_",
    ]
    parts = [*alphabet, *LINES[:5], "<tool_call>", "<|im_end|>", '": "', "\\\\n", "user\n"]
    for _ in range(300):
        text = "".join(source.choice(parts) for _ in range(source.randint(0, 40)))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert full.encode(text, add_special_tokens=False) == ids
    long = "z" * 20000 + LINES[0]
    assert tokenizer.decode(tokenizer.encode(long).ids) == long


def test_control_tokens_end_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    ids = write_line_tokenizer(tmp_path, TEXTS, SETTINGS, 2048)
    size = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()
    assert list(ids.values()) == list(range(size - len(CONTROL + MARKUP), size))
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == ids["<|im_end|>"]


def test_a_full_vocabulary_keeps_what_is_most_frequent(tmp_path: Path) -> None:
    settings = LineSettings(separators=("\n",), vocabulary=271, phrases=2.0, min_frequency=1, merges=0)
    write_line_tokenizer(tmp_path, ["common line\n" * 3 + "rare line\n"], settings, 64)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 271
    assert len(tokenizer.encode("common line").ids) == 1
    assert len(tokenizer.encode("rare line").ids) == len("rare line")


def test_a_vocabulary_without_room_is_refused(tmp_path: Path) -> None:
    settings = LineSettings(separators=("\n",), vocabulary=300, phrases=2.0, min_frequency=1, merges=64)
    with pytest.raises(ValueError, match="256 bytes, 64 merges and 9 control tokens"):
        write_line_tokenizer(tmp_path, ["a"], settings, 64)


def test_runs_need_enough_texts() -> None:
    common = ("You", "\n", "fix")
    texts = [[(*common, "\n", "one")], [(*common, "\n", "two")], [("three",)], [(*common, "\n", "one")]]
    assert shared_runs(texts, 0.75) == [("You", "\n", "fix", "\n")]
    assert shared_runs(texts, 0.5) == [("You", "\n", "fix", "\n", "one"), ("You", "\n", "fix", "\n")][:1]
    assert shared_runs(texts, 1.1) == []


def test_render_parse_and_extension_are_exact(folder: Path, tokenizer: Tokenizer) -> None:
    import numpy as np

    info = ModelInfo(
        name="lines", path=folder, renderer="qwen3", max_context=2048, num_layers=0, top_k=0, dtype="float32"
    )
    renderer = load_renderer(info)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You fix bugs.\nChange one line alone."},
        {"role": "user", "content": f"The fault is in this line:\n\n{LINES[0]}\n"},
    ]
    prompt = renderer.render(messages, TOOLS)
    for line in LINES[:5]:
        sampled = np.asarray(tokenizer.encode(call(line)).ids, np.int32)
        turn = renderer.parse(prompt, sampled, TOOLS)
        assert json.loads(turn.calls[0].arguments)["new_str"] == line
        answer = {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "type": "function",
                    "function": {"name": "file_editor", "arguments": json.loads(turn.calls[0].arguments)},
                }
            ],
        }
        result = {"role": "tool", "tool_call_id": "c", "content": f"     1\t    {line}\n"}
        tail = renderer.extend(prompt, sampled, [result], TOOLS)
        assert tail is not None
        messages += [answer, result]
        rendered = renderer.render(messages, TOOLS)
        prompt = np.concatenate([prompt, sampled, tail])
        assert tokenizer.decode(prompt.tolist(), skip_special_tokens=False) == tokenizer.decode(
            rendered.tolist(), skip_special_tokens=False
        )


def test_an_engine_finds_the_sizes_it_needs(folder: Path, tmp_path: Path) -> None:
    ids = write_line_tokenizer(tmp_path, TEXTS, SETTINGS, 2048)
    shape = Shape(
        hidden=32,
        layers=1,
        heads=2,
        kv_heads=1,
        head_dim=32,
        experts=4,
        top_k=2,
        moe_intermediate=32,
        vocabulary=max(ids.values()) + 1,
        max_context=2048,
    )
    write_config(tmp_path, shape, ids, "float32")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == len(AutoTokenizer.from_pretrained(tmp_path))
