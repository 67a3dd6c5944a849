"""From `ModelInfo.renderer` to a renderer.

The name is a family of the package `renderers` (`qwen3`, `qwen3.5`, …), thinking off; `NAME-thinking` turns it on;
`template` is the checkpoint's own chat template, `template:PARSER` with a tool-call parser (`template:qwen3`).
"""

from engine.core.errors import ConfigError
from engine.core.specs import ModelInfo
from engine.tokens.family import family_renderer
from engine.tokens.renderer import Renderer
from engine.tokens.template import template_renderer
from engine.tokens.tokenizer import CheckpointTokenizer

_THINKING = "-thinking"


def load_renderer(model: ModelInfo) -> Renderer:
    """Load the tokenizer of `model.path` and the renderer that `model.renderer` names. Raises ConfigError."""
    tokenizer = CheckpointTokenizer(model.path)
    thinking = model.renderer.endswith(_THINKING)
    name = model.renderer.removesuffix(_THINKING)
    family, _, parser = name.partition(":")
    if family == "template":
        return template_renderer(parser or None, thinking, tokenizer)
    if name in ("auto", "default"):
        way_out = "name a family (`qwen3`) or `template`"
        raise ConfigError("model.renderer", model.renderer, "is not a model's format", way_out)
    return family_renderer(name, thinking, tokenizer)
