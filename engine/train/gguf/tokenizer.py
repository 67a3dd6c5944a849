"""Vocabulary, merges and chat template of a GGUF file → tokenizer.json and tokenizer_config.json. tokenizers.

Invariant: a token has the id that it has in the file. Only byte-level BPE whose rule for cutting text into pieces is
known is converted: another rule would give other ids for the same text, and nobody would notice.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.errors import RunError
from engine.train.gguf.fields import Fields, field

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF's token types: what text never contains for a reader, and whole words that stay visible."""
_NAMED = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
"""Hugging Face's names of tokens with a role → GGUF's."""
_KNOWN_PIECES = ("smollm",)
"""Pre-tokenisers in llama.cpp's words: this one takes digits one by one and cuts the rest as GPT-2 does."""


def write_tokenizer(folder: Path, fields: Fields) -> None:
    """Raises RunError when the file's tokeniser is of a kind that is not known."""
    kind, pieces = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pieces not in _KNOWN_PIECES:
        known = ", ".join(_KNOWN_PIECES)
        raise RunError(f"the GGUF file's tokeniser is {kind!r} cut by {pieces!r}; known is 'gpt2' cut by {known}")
    if not fields.get("tokenizer.chat_template"):
        raise RunError("the GGUF file has no tokenizer.chat_template, so no message could be shown to the model")
    tokens: Sequence[str] = field(fields, "tokenizer.ggml.tokens")
    types: Sequence[int] = field(fields, "tokenizer.ggml.token_type")
    added = {number: kind for number, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)}
    _write_backend(folder / "tokenizer.json", tokens, field(fields, "tokenizer.ggml.merges"), added)
    numbers = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": field(fields, "llama.context_length"),
        **{name: None if number is None else tokens[number] for name, number in numbers.items()},
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(number): _added(tokens[number], kind) for number, kind in added.items()},
        "chat_template": fields["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_backend(file: Path, tokens: Sequence[str], merges: Sequence[str], added: Mapping[int, int]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {text: number for number, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise RunError(f"the GGUF file has {len(tokens)} tokens, but only {len(vocabulary)} different ones")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for number, kind in added.items():
        token = AddedToken(tokens[number], special=kind == _CONTROL, normalized=False)
        if kind == _CONTROL:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    tokenizer.save(str(file))


def _added(text: str, kind: int) -> dict[str, Any]:
    rest = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": text, "special": kind == _CONTROL, **rest}
