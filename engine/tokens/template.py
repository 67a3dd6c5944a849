"""Any model with a Jinja chat template, as long as the template proves itself prefix-exact.

At load a tool's result and a user's message are appended to a stand-in conversation; a template that rewrites what
stands before them is refused, since with it no sampled token could keep its context. Each later extension is proved
again for its own messages. Without a parser of tool calls it refuses requests that offer tools.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import ConfigError
from engine.tokens.backed import BackedRenderer
from engine.tokens.renderer import CannotRender, Chat, Shape, Tools
from engine.tokens.tokenizer import CheckpointTokenizer

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "tool", "description": "A tool.", "parameters": {"type": "object", "properties": {}}},
}
_PROBES: dict[str, tuple[dict[str, Any], ...]] = {
    "a tool's result": ({"role": "tool", "tool_call_id": "call00001", "content": "result"},),
    "a user's message": ({"role": "user", "content": "go on"},),
}


class _PlainText(BackedRenderer):
    """Without a parser no call could be read from an answer: a request with tools is refused, not answered in vain."""

    def misreads(self, shape: Shape) -> str:  # noqa: ARG002 (it reads no call, and is offered none)
        return ""

    def render(self, messages: Chat, tools: Tools) -> NDArray[np.int32]:
        if tools:
            raise CannotRender("model.renderer=template reads no tool calls; let the harness work in plain text")
        return super().render(messages, tools)


def template_renderer(tool_parser: str | None, thinking: bool, tokenizer: CheckpointTokenizer) -> BackedRenderer:
    """The checkpoint's own chat template. Raises ConfigError when there is none, or it is not prefix-exact."""
    from renderers import DefaultRendererConfig, create_renderer
    from transformers import PreTrainedTokenizerFast

    full = PreTrainedTokenizerFast.from_pretrained(tokenizer.name_or_path)
    way_out = "name the renderer of the model's family"
    if not full.chat_template:
        raise ConfigError("model.renderer", "template", "the checkpoint has no chat template", way_out)
    try:
        inner = create_renderer(full, DefaultRendererConfig(tool_parser=tool_parser, enable_thinking=thinking))
    except (ValueError, KeyError) as problem:
        raise ConfigError("model.renderer", f"template:{tool_parser}", str(problem), "name a known parser") from None
    renderer = (BackedRenderer if tool_parser else _PlainText)("template", inner, tokenizer, followed=not tool_parser)
    for name, new in _PROBES.items():
        if renderer.proved_tail(new, (_PROBE_TOOL,)) is None:
            fault = f"the chat template is not prefix-exact: appending {name} changes what stands before it"
            raise ConfigError("model.renderer", "template", fault, way_out)
    return renderer
