"""Whether a model's own chat template and the configured renderer write tool calls in the same way.

A parser of another format finds no call in what the model writes: every call passes as text and the run learns nothing.
So at load the checkpoint's template writes a call, and the renderer must read that very call. Refuses a pair that does
not agree. A checkpoint without a template, or one that writes no calls, gives nothing to compare with.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.core.errors import ConfigError
from engine.tokens.renderer import Renderer
from engine.tokens.tokenizer import CheckpointTokenizer

_NAME, _VALUE = "list_files", "src/a.py"
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Lists files.",
        "parameters": {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]},
    },
}
_CALL: Mapping[str, Any] = {
    "id": "call00001",
    "type": "function",
    "function": {"name": _NAME, "arguments": {"folder": _VALUE}},
}
_ASKED = {"role": "user", "content": "Look."}


def check_agreement(renderer: Renderer, tokenizer: CheckpointTokenizer) -> None:
    """Raises ConfigError when the renderer does not read the calls of the checkpoint's own chat template."""
    written = _written_call(tokenizer)
    if written is None or _NAME not in written:
        return
    turn = renderer.parse(np.zeros(0, np.int32), np.asarray(tokenizer.encode(written), np.int32), (_TOOL,))
    if [(call.name, json.loads(call.arguments) if call.well_formed else None) for call in turn.calls] == [
        (_NAME, {"folder": _VALUE})
    ]:
        return
    shown = " ".join(written[written.index(_NAME) - min(written.index(_NAME), 30) :].split())[:80]
    raise ConfigError(
        "model.renderer",
        renderer.name,
        f"reads no tool call in what the checkpoint's own chat template writes ({shown} …)",
        "name the renderer of the model's family, or the parser of its format",
    )


def _written_call(tokenizer: CheckpointTokenizer) -> str | None:
    """An assistant's turn that calls a tool, as the template writes it; None where that cannot be told."""
    template = chat_template(tokenizer)
    if not template:
        return None
    said = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    try:
        before = _render(template, [_ASKED], tokenizer)
        whole = _render(template, [_ASKED, said], tokenizer)
    except Exception:
        # A template may raise on anything, and use what only its makers' library has: then there is nothing to read.
        return None
    return whole[len(before) :] if whole.startswith(before) else None


def chat_template(tokenizer: CheckpointTokenizer) -> str | None:
    """Of the checkpoint: a file of its own, or a text among the tokenizer's settings."""
    file = Path(tokenizer.name_or_path) / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = tokenizer.settings.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if one.get("name") in ("tool_use", "default")), None)
    return found if isinstance(found, str) else None


def _render(template: str, messages: list[Mapping[str, Any]], tokenizer: CheckpointTokenizer) -> str:
    """As transformers does it, without importing it."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **({"ensure_ascii": False} | options))
    environment.globals["raise_exception"] = refuse
    marks = {f"{name}_token": _text(tokenizer.settings.get(f"{name}_token")) for name in ("bos", "eos", "pad")}
    return environment.from_string(template).render(
        messages=messages, tools=[_TOOL], add_generation_prompt=False, **marks
    )


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
