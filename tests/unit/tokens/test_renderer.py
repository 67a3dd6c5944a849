"""Rendering, parsing and extension with the real Qwen3 renderer on a small tokenizer."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from proxy_pieces import FORGETFUL, TERMINAL, call_text, make_checkpoint, model_info

from engine.core.errors import ConfigError
from engine.tokens import CannotRender, ParsedCall, ParsedTurn, Renderer, load_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

Ids = NDArray[np.int32]
START = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "fix it"}]
HEADER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def renderer(checkpoint: Path) -> Renderer:
    return load_renderer(model_info(checkpoint))


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> CheckpointTokenizer:
    return CheckpointTokenizer(checkpoint)


@pytest.fixture(scope="module")
def encode(tokenizer: CheckpointTokenizer) -> Any:
    return lambda text: np.asarray(tokenizer.encode(text), dtype=np.int32)


@pytest.fixture(scope="module")
def decode(tokenizer: CheckpointTokenizer) -> Any:
    return lambda ids: tokenizer.decode(ids.tolist())


def test_a_conversation_of_four_turns_is_extended_exactly(renderer: Renderer, encode: Any, decode: Any) -> None:
    """Tool tails, a user tail, a cut turn: the stream only grows, and reads as a rendering of the whole would."""
    stream = renderer.render(START, [TERMINAL])
    turns = [
        ("Let me look.\n" + call_text("ls") + "<|im_end|>", [{"role": "tool", "tool_call_id": "a", "content": "x.py"}]),
        (
            call_text("a") + "\n" + call_text("b") + "<|im_end|>",
            [
                {"role": "tool", "tool_call_id": "b", "content": "1"},
                {"role": "tool", "tool_call_id": "c", "content": "2"},
            ],
        ),
        ("It works.<|im_end|>", [{"role": "user", "content": "Really?"}]),
        ("This is cut in the mid", [{"role": "user", "content": "Go on."}]),
    ]
    text = decode(stream)
    for sampled_text, new in turns:
        sampled = encode(sampled_text)
        tail = renderer.extend(stream, sampled, new, [TERMINAL])
        assert tail is not None
        stream = np.concatenate([stream, sampled, tail])
        results = "\n".join(f"<tool_response>\n{m['content']}\n</tool_response>" for m in new if m["role"] == "tool")
        body = results or new[0]["content"]
        closed = sampled_text if sampled_text.endswith("<|im_end|>") else sampled_text + "<|im_end|>"
        text += f"{closed}\n<|im_start|>user\n{body}<|im_end|>\n{HEADER}"
    assert decode(stream) == text


@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_any_stop_token_is_kept_as_sampled(renderer: Renderer, encode: Any, decode: Any, stop: str) -> None:
    tail = renderer.extend(renderer.render(START, []), encode("ok" + stop), [{"role": "user", "content": "u"}], [])
    assert tail is not None
    assert decode(tail) == f"\n<|im_start|>user\nu<|im_end|>\n{HEADER}"


def test_thinking_that_stopped_open_is_still_extended(renderer: Renderer, encode: Any, decode: Any) -> None:
    sampled = encode("<think>\nhm<|im_end|>")
    tail = renderer.extend(renderer.render(START, []), sampled, [{"role": "user", "content": "u"}], [])
    assert tail is not None
    assert decode(tail) == f"\n<|im_start|>user\nu<|im_end|>\n{HEADER}"


def test_a_turn_of_others_in_the_tail_is_context(renderer: Renderer, encode: Any, decode: Any) -> None:
    new = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "no"}, {"role": "user", "content": "v"}]
    tail = renderer.extend(renderer.render(START, []), encode("ok<|im_end|>"), new, [])
    assert tail is not None
    assert decode(tail) == (
        f"\n<|im_start|>user\nu<|im_end|>\n{HEADER}no<|im_end|>\n<|im_start|>user\nv<|im_end|>\n{HEADER}"
    )


def test_sampled_ids_that_no_text_encodes_to_survive(renderer: Renderer, encode: Any, decode: Any) -> None:
    """A spelling that the tokenizer would never choose stays as it was sampled."""
    odd = np.concatenate([encode(letter) for letter in "assistant"] + [encode("<|im_end|>")])
    assert odd.tolist() != encode(decode(odd)).tolist()
    prompt = renderer.render(START, [])
    tail = renderer.extend(prompt, odd, [{"role": "user", "content": "u"}], [])
    assert tail is not None and decode(tail).startswith("\n<|im_start|>user")


def parsed(renderer: Renderer, encode: Any, text: str, tools: list[Any]) -> ParsedTurn:
    return renderer.parse(renderer.render(START, tools), encode(text), tools)


def test_parses_text_reasoning_and_parallel_calls(renderer: Renderer, encode: Any) -> None:
    text = "Look.\n" + call_text("ls") + "\n" + call_text("pwd") + "<|im_end|>"
    assert parsed(renderer, encode, text, [TERMINAL]) == ParsedTurn(
        content="Look.",
        reasoning="",
        calls=(
            ParsedCall(name="terminal", arguments='{"command": "ls"}', well_formed=True),
            ParsedCall(name="terminal", arguments='{"command": "pwd"}', well_formed=True),
        ),
    )
    thought = parsed(renderer, encode, "<think>\nhm\n</think>\n\nyes<|im_end|>", [])
    assert (thought.content, thought.reasoning) == ("yes", "hm")


@pytest.mark.parametrize("name", ["qwen3", "qwen3-thinking"])
@pytest.mark.parametrize("end", ["", "\n</think>\n\n"])
def test_a_call_within_the_thinking_is_not_lost(checkpoint: Path, encode: Any, name: str, end: str) -> None:
    turn = parsed(
        load_renderer(model_info(checkpoint, name)), encode, f"<think>\nhm {call_text('ls')}{end}<|im_end|>", [TERMINAL]
    )
    call = ParsedCall(name="terminal", arguments='{"command": "ls"}', well_formed=True)
    assert turn == ParsedTurn(content="", reasoning="hm", calls=(call,))


def test_a_call_that_is_only_thought_of_stays_thought(renderer: Renderer, encode: Any) -> None:
    for after, calls in ((call_text("pwd"), 1), ("No, I am done.", 0)):
        text = f"<think>\nperhaps {call_text('ls')}\n</think>\n\n{after}<|im_end|>"
        turn = parsed(renderer, encode, text, [TERMINAL])
        assert len(turn.calls) == calls
        assert call_text("ls") in turn.reasoning
        assert all(call.arguments == '{"command": "pwd"}' for call in turn.calls)


@pytest.mark.parametrize(
    ("block", "name", "arguments"),
    [
        ('{"name": "terminal", "arguments": {"command": "l}', "terminal", '{"command": "l}'),
        ('{"name": "terminal", "arguments": {"command": "ls"', "terminal", '{"command": "ls"'),
        ('{"name": "terminal", "arguments": [1]}', "terminal", "[1]"),
        ('{"name": "terminal", "arguments": "ls"}', "terminal", "ls"),
        ('{"name": "terminal" "arguments": {"command": "ls"}}', "terminal", '{"command": "ls"}'),
    ],
)
def test_a_malformed_call_keeps_name_and_raw_arguments(
    renderer: Renderer, encode: Any, block: str, name: str, arguments: str
) -> None:
    turn = parsed(renderer, encode, f"<tool_call>\n{block}\n</tool_call><|im_end|>", [TERMINAL])
    assert turn.calls == (ParsedCall(name=name, arguments=arguments, well_formed=False),)
    assert turn.content == ""


def test_a_call_cut_by_the_limit_is_a_malformed_call(renderer: Renderer, encode: Any) -> None:
    turn = parsed(renderer, encode, '<tool_call>\n{"name": "terminal", "arguments": {"comm', [TERMINAL])
    assert turn.calls == (ParsedCall(name="terminal", arguments='{"comm', well_formed=False),)


def test_a_string_of_json_is_read_as_the_object_in_it(renderer: Renderer, encode: Any) -> None:
    block = '<tool_call>{"name": "terminal", "arguments": "{\\"command\\": 1}"}</tool_call>'
    assert parsed(renderer, encode, block, [TERMINAL]).calls == (
        ParsedCall(name="terminal", arguments='{"command": 1}', well_formed=True),
    )


@pytest.mark.parametrize("text", ['<tool_call>{"nam": 1}</tool_call>', "<tool_call>" + "[" * 3000 + "</tool_call>"])
def test_what_is_no_call_stays_text(renderer: Renderer, encode: Any, text: str) -> None:
    turn = parsed(renderer, encode, text + "<|im_end|>", [TERMINAL])
    assert turn.calls == () and turn.content == text


def test_without_tools_a_call_is_text(renderer: Renderer, encode: Any) -> None:
    turn = parsed(renderer, encode, call_text("ls") + "<|im_end|>", [])
    assert turn == ParsedTurn(content=call_text("ls"), reasoning="", calls=())


def test_control_tokens_and_lone_surrogates_reach_no_reader(renderer: Renderer, encode: Any) -> None:
    assert parsed(renderer, encode, "<|im_start|>hi<|im_end|>", []).content == "hi"
    block = '<tool_call>{"name": "\\ud83d", "arguments": {"a": "\\ud83d"}}</tool_call>'
    call = parsed(renderer, encode, block, [TERMINAL]).calls[0]
    (call.name + call.arguments).encode()
    assert call.name == "�" and call.arguments == '{"a": "\\ud83d"}'


def test_any_token_sequence_parses(renderer: Renderer, tokenizer: CheckpointTokenizer) -> None:
    random = np.random.default_rng(0)
    size = tokenizer.backend.get_vocab_size()
    marks = tokenizer.encode("<tool_call></tool_call><think></think><|im_end|><|im_start|>")
    for _ in range(300):
        ids = random.integers(0, size, 30)
        ids[random.integers(0, 30, 6)] = random.choice(marks, 6)
        turn = renderer.parse(renderer.render(START, [TERMINAL]), ids.astype(np.int32), [TERMINAL])
        (turn.content + turn.reasoning + "".join(c.name + c.arguments for c in turn.calls)).encode()


def test_a_long_text_is_encoded_while_other_threads_run(tokenizer: CheckpointTokenizer) -> None:
    text = "def f(x):\n    return x\n" * 4000
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(tokenizer.encode, text)
        turns = 0
        while not encoding.done():
            time.sleep(0)
            turns += 1
    assert turns > 100, "the interpreter was held"
    assert encoding.result() == tokenizer.backend.encode(text, add_special_tokens=False).ids


def test_no_token_stands_for_more_characters_than_the_longest(tokenizer: CheckpointTokenizer) -> None:
    text = "You are a helpful assistant that fixes code.<|endoftext|>"
    assert len(tokenizer.encode(text)) * tokenizer.longest >= len(text)
    assert tokenizer.longest >= len("<|endoftext|>")


def test_token_texts_are_one_per_token(renderer: Renderer, encode: Any) -> None:
    assert "".join(renderer.token_texts(encode("ls -la"))) == "ls -la"


# ---------------------------------------------------------------- loading


def test_thinking_is_on_only_when_asked_for(checkpoint: Path, decode: Any) -> None:
    thinking = load_renderer(model_info(checkpoint, "qwen3-thinking"))
    assert decode(thinking.render(START, [])).endswith("<|im_start|>assistant\n")


def test_history_that_thought_goes_on_after_a_user_message(checkpoint: Path, encode: Any, decode: Any) -> None:
    thinking = load_renderer(model_info(checkpoint, "qwen3-thinking"))
    sampled = encode("<think>\nhm\n</think>\n\nyes<|im_end|>")
    tail = thinking.extend(thinking.render(START, []), sampled, [{"role": "user", "content": "u"}], [])
    assert tail is not None
    assert decode(tail) == "\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", ["qwen33", "auto", "llama-3", "deepseek-v3", "prime-qwen3-thinking"])
def test_a_renderer_that_does_not_fit_is_refused(checkpoint: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_renderer(model_info(checkpoint, name))
    assert caught.value.key == "model.renderer"


def test_a_family_whose_own_library_fails_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of gpt-oss does where its vocabulary cannot be downloaded."""

    def create(*_: Any) -> None:
        raise RuntimeError("failed to download\nor load vocab file")

    monkeypatch.setattr("renderers.create_renderer", create)
    with pytest.raises(ConfigError, match=r"^model\.renderer='qwen3': .*failed to download or load vocab file; "):
        load_renderer(model_info(checkpoint))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_renderer(model_info(tmp_path))


# ---------------------------------------------------------------- chat templates


def test_a_prefix_exact_template_is_extended(checkpoint: Path, encode: Any, decode: Any) -> None:
    renderer = load_renderer(model_info(checkpoint, "template:qwen3"))
    prompt = renderer.render(START, [TERMINAL])
    assert decode(prompt).endswith("<|im_start|>user\nfix it<|im_end|>\n<|im_start|>assistant\n")
    sampled = encode(call_text("ls") + "<|im_end|>")
    new = [{"role": "tool", "tool_call_id": "a", "content": "out"}]
    tail = renderer.extend(prompt, sampled, new, [TERMINAL])
    assert tail is not None
    assert decode(tail) == "\n<|im_start|>tool\nout<|im_end|>\n<|im_start|>assistant\n"
    cut = renderer.extend(prompt, encode("cut"), new, [TERMINAL])
    assert cut is not None and decode(cut) == "<|im_end|>" + decode(tail)
    assert [call.name for call in renderer.parse(prompt, sampled, [TERMINAL]).calls] == ["terminal"]


@pytest.mark.parametrize(("template", "problem"), [(FORGETFUL, "not prefix-exact"), ("", "no chat template")])
def test_a_template_that_cannot_prove_itself_is_refused(tmp_path: Path, template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_renderer(model_info(make_checkpoint(tmp_path, template), "template"))


def test_without_a_parser_no_tools_are_offered(checkpoint: Path, encode: Any, decode: Any) -> None:
    renderer = load_renderer(model_info(checkpoint, "template"))
    with pytest.raises(CannotRender, match="let the harness work in plain text"):
        renderer.render(START, [TERMINAL])
    prompt = renderer.render(START, [])
    tail = renderer.extend(prompt, encode("ls<|im_end|>"), [{"role": "user", "content": "out"}], [])
    assert tail is not None
    assert decode(tail) == "\n<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n"


def test_an_unknown_tool_parser_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_renderer(model_info(checkpoint, "template:nothing"))
    assert caught.value.key == "model.renderer"


def test_a_template_that_raises_is_a_refused_message(tmp_path: Path) -> None:
    picky = (
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    renderer = load_renderer(model_info(make_checkpoint(tmp_path, picky), "template"))
    with pytest.raises(CannotRender, match="no"):
        renderer.render([{"role": "user", "content": "bad"}], [])


def test_what_is_encoded_twice_is_no_shared_list(tokenizer: CheckpointTokenizer) -> None:
    """Short texts are remembered: who changes the ids that it got must not change those of the next one."""
    for text in ("user\n", "<|im_end|>", "a long text " * 1000):
        first = tokenizer.encode(text)
        first.append(-1)
        again = tokenizer.encode(text)
        assert first == [*again, -1] and tokenizer.decode(again) == text
    assert tokenizer._short.cache_info().currsize <= 256
