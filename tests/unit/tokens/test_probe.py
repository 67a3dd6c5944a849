"""Calls that a model's own template writes must be what the parser reads, or nothing starts."""

from pathlib import Path
from typing import Any

import pytest
from proxy_pieces import CHATML, SETTINGS, ScriptedEngine, make_checkpoint, make_harness, model_info

from engine.core.errors import ConfigError, ConfigErrors
from engine.proxy.app import LlmProxy
from engine.tokens import Shape, load_renderer
from engine.tokens.chat_template import template_writer
from engine.tokens.tokenizer import CheckpointTokenizer
from engine.train.tiny.tokenizer import CHAT_TEMPLATE

XML = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "\n<tool_call>\n<function={{ c.function.name }}>\n{% for key, value in c.function.arguments.items() %}"
    "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Calls as Qwen3-Coder and Qwen3.5 write them."""
SILENT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""No calls at all: of a model that has still to learn them."""
SHAPE = Shape(name="terminal", arguments={"command": "ls {path}", "timeout": 3, "more": {"a": ["b"]}})


@pytest.mark.parametrize("name", ["qwen3", "qwen3-thinking", "template:qwen3"])
@pytest.mark.parametrize("template", [CHATML, CHAT_TEMPLATE], ids=["plain", "tiny"])
def test_calls_come_back(tmp_path: Path, name: str, template: str) -> None:
    assert load_renderer(model_info(make_checkpoint(tmp_path, template), name)).misreads(SHAPE) == ""


def test_a_template_without_calls_leaves_them_to_the_renderer(tmp_path: Path) -> None:
    assert load_renderer(model_info(make_checkpoint(tmp_path, SILENT), "qwen3")).misreads(SHAPE) == ""


FAMILIES = [
    f"{name}{thinking}" for name in ("qwen3", "qwen3.5", "qwen3.6", "qwen3.8") for thinking in ("", "-thinking")
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_reads_the_calls_of_its_own_format_alone(tmp_path: Path, name: str) -> None:
    """vllm-mlx#55: calls in XML passed as text."""
    own, other = (XML, CHATML) if name.startswith("qwen3.") else (CHATML, XML)
    assert load_renderer(model_info(make_checkpoint(tmp_path / "own", own), name)).misreads(SHAPE) == ""
    problem = load_renderer(model_info(make_checkpoint(tmp_path / "other", other), name)).misreads(SHAPE)
    assert "as the checkpoint's chat template writes them" in problem


@pytest.mark.parametrize(("name", "template"), [("template:qwen3", XML), ("template:glm", CHATML)])
def test_a_parser_of_another_format_is_told(tmp_path: Path, name: str, template: str) -> None:
    assert load_renderer(model_info(make_checkpoint(tmp_path, template), name)).misreads(SHAPE)


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-thinking"])
def test_a_template_that_writes_thoughts_before_the_call_is_read_too(tmp_path: Path, name: str) -> None:
    thoughts = "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
    folder = make_checkpoint(tmp_path, XML.replace("{{ m.content }}", thoughts))
    assert load_renderer(model_info(folder, name)).misreads(SHAPE) == ""


def test_a_template_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "")
    (folder / "chat_template.jinja").write_text(XML)
    assert load_renderer(model_info(folder, "qwen3")).misreads(SHAPE)


@pytest.mark.parametrize("name", ["template:qwen3.5", "qwen3"])
def test_a_parser_that_changes_arguments_is_told(tmp_path: Path, name: str) -> None:
    """Without a schema the text "5" is a number; and whoever writes the calls counts, not the renderer alone."""
    folder = make_checkpoint(tmp_path, XML if name != "qwen3" else CHATML)
    made: Any = load_renderer(model_info(folder, name))
    if name == "qwen3":
        made.taught = template_writer(CheckpointTokenizer(make_checkpoint(tmp_path / "other", XML)), False)
    problem = made.misreads(SHAPE)
    said = (
        "calls of `terminal` are read as malformed" if name == "qwen3" else "arguments of `terminal` come back changed"
    )
    assert said in problem
    assert ("the checkpoint's chat template" in problem) == (name == "qwen3")


OTHER_ROLES = CHATML.replace("<|im_start|>{{ m.role }}", "<|{{ m.role }}|>")
OTHER_END = CHATML.replace("{% endfor %}<|im_end|>", "{% endfor %}<|endoftext|>\n<|vision_end|>")


@pytest.mark.parametrize("template", [OTHER_ROLES, OTHER_END], ids=["roles", "ends"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_renderer_whose_prompts_have_another_form_is_refused(tmp_path: Path, name: str, template: str) -> None:
    """Its calls would be read, but the model was never taught to go on from such prompts."""
    with pytest.raises(ConfigError, match="prompts have another form than those of the checkpoint's chat") as caught:
        load_renderer(model_info(make_checkpoint(tmp_path, template), name))
    assert caught.value.key == "model.renderer"


MORE_BEFORE = "<|im_start|>system\nYou are helpful.<|im_end|>\n" + CHATML
MORE_AFTER = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
NO_PLACE = "{{ raise_exception('no') }}"


@pytest.mark.parametrize("template", [MORE_BEFORE, MORE_AFTER, NO_PLACE, "mute"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3-thinking"])
def test_what_a_template_says_beside_the_messages_is_another_matter(tmp_path: Path, name: str, template: str) -> None:
    load_renderer(model_info(make_checkpoint(tmp_path, template), name))


CALL = "<tool_call>{{ c.function | tojson }}</tool_call>"
WRITTEN: dict[str, tuple[str, str]] = {
    "other name": (CALL, '<tool_call>{"name": "x", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'),
    "one of two": ("{% for c in m.tool_calls or [] %}", "{% for c in (m.tool_calls or [])[:1] %}"),
    "text twice": ("{{ m.content }}", "{{ m.content }}{% if m.tool_calls %}{{ m.content }}{% endif %}"),
}
SAID = {
    "other name": "calls of `terminal` are read as calls of `x`",
    "one of two": "of 2 calls of `terminal` its parser reads 1",
    "text twice": "the text before calls of `terminal` comes back changed",
}


@pytest.mark.parametrize("case", WRITTEN)
def test_each_part_of_a_turn_must_come_back(tmp_path: Path, case: str) -> None:
    template = CHATML.replace(*WRITTEN[case])
    assert template != CHATML
    assert SAID[case] in load_renderer(model_info(make_checkpoint(tmp_path, template), "qwen3")).misreads(SHAPE)


def test_thoughts_must_come_back_too(tmp_path: Path) -> None:
    """A template that opens the thinking and closes it in words of its own."""
    thoughts = "{% if m.reasoning_content %}{{ m.reasoning_content }} So be it.\n</think>\n\n{% endif %}{{ m.content }}"
    opened = XML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    turn = "{% if m.role == 'assistant' %}<think>\n{% endif %}" + thoughts
    folder = make_checkpoint(tmp_path, opened.replace("{{ m.content }}", turn))
    problem = load_renderer(model_info(folder, "qwen3.5-thinking")).misreads(SHAPE)
    assert "the reasoning before calls of `terminal` comes back changed" in problem


async def test_nothing_starts_with_it(tmp_path: Path) -> None:
    harness: Any = make_harness()
    harness.demonstration = [{"text": "", "name": "terminal", "arguments": {"command": "ls"}}]
    harness.demonstration.append({"text": "Done.", "name": None, "arguments": {}})
    engine: Any = ScriptedEngine(encode=lambda text: [], script=[])
    proxy = LlmProxy(**SETTINGS)
    await proxy.start(model_info(make_checkpoint(tmp_path, XML), "template:qwen3.5"), engine)
    with pytest.raises(ConfigErrors) as caught:
        proxy.check({"own": harness})
    (error,) = caught.value.errors
    assert (error.key, error.value) == ("model.renderer", "template:qwen3.5")
    for words in ("harness=own", "`terminal`", "the model's own family"):
        assert words in str(error)
    await proxy.stop()


async def test_plain_text_has_no_calls_to_misread(tmp_path: Path) -> None:
    assert load_renderer(model_info(make_checkpoint(tmp_path), "template")).misreads(SHAPE) == ""
