"""A checkpoint's own chat template, run on jinja2 alone: what the model was taught to read and to write.

For the probe before launch; prompts are the renderer's. Raises what templates raise.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.tokens.probe import Write
from engine.tokens.renderer import Tools
from engine.tokens.tokenizer import CheckpointTokenizer


def template_writer(tokenizer: CheckpointTokenizer, thinking: bool) -> Write | None:
    """Messages to ids by the checkpoint's template; None where it has none that can be read."""
    source = _source(tokenizer)
    if source is None:
        return None
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda _: "2026-01-01"
    try:
        template = environment.from_string(source)
    except TemplateError:  # written for tags that only its own library has
        return None
    special = {name: tokenizer.named(name) or "" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def write(messages: Sequence[Mapping[str, Any]], tools: Tools) -> Sequence[int]:
        offered = list(tools) or None
        values = {"messages": list(messages), "tools": offered, "add_generation_prompt": True}
        return tokenizer.encode(template.render(**values, enable_thinking=thinking, **special))

    return write


def _source(tokenizer: CheckpointTokenizer) -> str | None:
    """A file of its own, or a text among the tokenizer's settings."""
    file = Path(tokenizer.name_or_path) / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = tokenizer.settings.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if one.get("name") in ("tool_use", "default")), None)
    return found if isinstance(found, str) else None


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise ValueError(message)
