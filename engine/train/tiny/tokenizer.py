"""Trains the project's byte-level BPE and writes a Qwen3-compatible tokenizer folder.

Invariant: every byte string has ids and `decode(encode(text)) == text`; the nine control tokens of Qwen3 have ids of
their own at the end of the vocabulary. It refuses a vocabulary that the corpus cannot fill.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Tokens that text can never contain for a reader: skipped when decoding without specials."""
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tokens of one id each that stay visible in decoded text."""

# A word with at most one leading blank or underscore; single digits; punctuation; line breaks with the indentation
# that follows them; other blanks. Pieces never join across these borders.
_PIECES = r"[ _]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|(?:\r?\n)+[ \t]*|[^\S\r\n]+|\s"

# The Qwen3 format, as `renderers` writes it with thinking off: earlier turns keep their empty think block.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with \
function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n\
</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
{%- set function = call.function or call %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}
"""


def write_tokenizer(folder: Path, corpus: Iterable[str], vocabulary: int, max_context: int) -> dict[str, int]:
    """Train on `corpus` and write tokenizer.json and tokenizer_config.json into `folder`.

    `vocabulary` counts everything: 256 bytes, merges, and the nine control tokens. Returns the ids of the control
    tokens. Raises ValueError when the corpus has too few distinct pieces for the vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    specials = len(CONTROL) + len(MARKUP)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - specials,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    add_control(tokenizer)
    size = tokenizer.get_vocab_size()
    if size != vocabulary:
        raise ValueError(f"the corpus fills {size} of {vocabulary} tokens")
    return save(folder, tokenizer, max_context)


def add_control(tokenizer: "Tokenizer") -> None:
    """Add the nine tokens of Qwen3 at the end of the vocabulary."""
    from tokenizers import AddedToken

    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])


def save(folder: Path, tokenizer: "Tokenizer", max_context: int) -> dict[str, int]:
    """Write the files of a tokenizer that ends in `add_control`; returns the ids of the control tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    ids = {text: size - len(CONTROL + MARKUP) + n for n, text in enumerate(CONTROL + MARKUP)}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(ids[text]): {
                "content": text,
                "special": text in CONTROL,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
            }
            for text in CONTROL + MARKUP
        },
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return ids
