"""Renderers written for a model family, from the package `renderers`.

Thinking is off unless asked for. History keeps what was sampled, thinking included, whatever message follows
(`thinking_retention="all"`): a stream only ever grows.
"""

from typing import Any

from engine.core.errors import ConfigError
from engine.tokens.backed import BackedRenderer
from engine.tokens.chat_template import template_writer
from engine.tokens.probe import misfit
from engine.tokens.tokenizer import CheckpointTokenizer

_FOLLOWED = ("qwen3", "qwen3.5", "qwen3.6", "qwen3.8")
"""Families whose marks are tokens of their own and whose text precedes the calls: what `engine.tokens.follow` reads."""


def family_renderer(name: str, thinking: bool, tokenizer: CheckpointTokenizer) -> BackedRenderer:
    """The renderer of the family `name`. Raises ConfigError when there is none, or it does not fit the tokenizer."""
    from renderers import config_from_name, create_renderer

    try:
        defaults: Any = config_from_name(name)
    except (ValueError, KeyError) as problem:
        way_out = "name a renderer of the package `renderers`, or `template`"
        raise ConfigError("model.renderer", name, str(problem), way_out) from None
    own_family = "use the renderer of the model's own family"
    options: dict[str, Any] = {"thinking_retention": "all"}
    if "enable_thinking" in type(defaults).model_fields:
        options["enable_thinking"] = thinking
    elif thinking:
        raise ConfigError("model.renderer", f"{name}-thinking", "this family has no such switch", f"use `{name}`")
    try:
        inner = create_renderer(tokenizer, type(defaults)(**options))
    except Exception as problem:  # each family has its own, down to that of a vocabulary that cannot be downloaded
        said = " ".join(str(problem).split())
        raise ConfigError("model.renderer", name, f"does not fit the tokenizer: {said}", own_family) from None
    renderer = BackedRenderer(name, inner, tokenizer, followed=name in _FOLLOWED)
    renderer.taught = template_writer(tokenizer, thinking)
    if renderer.taught is not None:
        unlike = misfit(lambda messages, tools: renderer.render(messages, tools).tolist(), renderer.taught)
        if unlike:
            raise ConfigError("model.renderer", name, f"does not fit the model: {unlike}", own_family)
    return renderer
