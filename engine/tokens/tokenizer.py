"""The tokenizer of a checkpoint folder, on `tokenizers` alone.

It offers `renderers` what it asks of a tokenizer and no more: without character offsets that library skips the
attribution of tokens to messages, which is most of its cost and of no use here. Encoding is safe from several threads.
"""

import json
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.core.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_LONG = 4096
"""Characters from which a text is encoded as a batch of one: the library lets other threads run in batches alone."""
_REMEMBERED = 256
"""Shorter texts whose ids are remembered: the marks around each message, the system prompt and tools of all trials."""


class CheckpointTokenizer:
    """`tokenizer.json` of a Hugging Face checkpoint, with the surface that `renderers` expects."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError("model.path", str(folder), "has no tokenizer.json", "point it to a checkpoint folder")
        try:
            self.backend: Backend = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            problem = f"its tokenizer.json cannot be read ({' '.join(str(error).split())})"
            raise ConfigError("model.path", str(folder), problem, "point it to a whole checkpoint folder") from error
        self.name_or_path = str(folder)
        self.unk_token_id: int | None = None
        self._folder = folder
        self._short = lru_cache(maxsize=_REMEMBERED)(self._encode_short)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Contents of tokenizer_config.json; empty where there is none."""
        file = self._folder / "tokenizer_config.json"
        return dict(json.loads(file.read_text())) if file.is_file() else {}

    @cached_property
    def eos_token_id(self) -> int | None:
        name = self.named("eos_token")
        return None if name is None else self.convert_tokens_to_ids(name)

    def named(self, role: str) -> str | None:
        """Text of the token that has a role (`eos_token`); None where no token has it."""
        token = self.settings.get(role)
        name = token.get("content") if isinstance(token, dict) else token
        return name if isinstance(name, str) else None

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of the control tokens, which no reader of a message should see."""
        added = self.backend.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    @cached_property
    def added_ids(self) -> frozenset[int]:
        """Tokens that stand for a text of their own: control tokens and the marks of a message's format."""
        return frozenset(self.backend.get_added_tokens_decoder())

    @cached_property
    def longest(self) -> int:
        """Characters that one token can stand for; a normalizer may have put up to four of them together. Without
        bytes to fall back on, one token may stand for any text that the vocabulary does not have."""
        if not self.byte_level:
            return sys.maxsize
        longest = max(map(len, self.backend.get_vocab()))
        return longest if self.backend.normalizer is None else 4 * longest

    @property
    def byte_level(self) -> bool:
        """Whether texts of neighbouring tokens, put together, are the text of both."""
        return type(self.backend.decoder).__name__ == "ByteLevel"

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        if len(text) < _LONG:
            return list(self._short(text, add_special_tokens))
        return list(self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def _encode_short(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found = self.backend.token_to_id(token)
        return None if found is None else int(found)
