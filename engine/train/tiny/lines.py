"""A tokeniser of lines: what stands between two separators is one token, if it was seen often enough.

A byte-level BPE that looks a whole piece up before it merges bytes (`ignore_merges`, as Llama 3 does). So a known line
costs one entry of the vocabulary and no chain of merges, and a prompt of 20,000 characters a few hundred tokens.
Invariants: a line has the same token after a newline, behind indentation and within a JSON string; every text
survives encoding and decoding; the same texts give the same bytes.
It refuses a vocabulary that does not hold the bytes, the merges and the control tokens.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.train.tiny.phrases import Run, shared_runs
from engine.train.tiny.tokenizer import CONTROL, MARKUP, add_control, save

_BYTES = 256
_CONTROL = re.compile("|".join(re.escape(text) for text in CONTROL + MARKUP))
_ROLES = ("system", "user", "assistant")
"""Renderers encode some of these by themselves, which no text of a conversation shows."""
_INDENTATION = r"\A(?: {2}|\t)[ \t]*"
"""Two blanks or more, or a tab, at the beginning of a piece; one blank belongs to the words that it precedes."""


@dataclass(frozen=True, kw_only=True)
class LineSettings:
    """What decides a tokeniser of lines, beside its texts."""

    separators: tuple[str, ...]
    """Literal texts, each a piece of its own wherever it stands, also JSON-escaped once or twice."""
    vocabulary: int
    """Most tokens in all: 256 bytes, merges, separators, phrases, whole pieces, nine control tokens."""
    min_frequency: int
    """Times that a piece must be seen to become one token."""
    phrases: float
    """Share of the texts that must hold a run of pieces for it to become one token; above 1: none does."""
    merges: int
    """Most byte-pair merges, which spell pieces that were seen too seldom or never."""


def write_line_tokenizer(
    folder: Path, texts: Iterable[str], settings: LineSettings, max_context: int
) -> dict[str, int]:
    """Learn the pieces of `texts` and write tokenizer.json and tokenizer_config.json into `folder`.

    Returns the ids of the control tokens; the vocabulary's size is one more than the largest. Order of ids: bytes,
    merges, separators, phrases, whole pieces (the most frequent first), control tokens. Raises ValueError when
    `vocabulary` is too small."""
    from tokenizers import Tokenizer, decoders, models

    most = settings.vocabulary - len(CONTROL + MARKUP)
    if most < _BYTES + settings.merges:
        raise ValueError(f"256 bytes, {settings.merges} merges and {len(CONTROL + MARKUP)} control tokens are more")
    chunked = [_chunks(text) for text in texts]
    runs = _phrases(chunked, settings)
    seen = _count(chunked, _splitting(settings.separators, runs, spelt=False))
    vocabulary, merges = _subwords(sorted(seen), settings.merges)
    frequent = [text for text, count in seen.items() if count >= settings.min_frequency]
    learnt = sorted(frequent, key=lambda text: (-seen[text], text))
    for piece in (*_ROLES, *_literals(settings.separators), *("".join(run) for run in runs), *learnt):
        if len(vocabulary) == most:
            break
        vocabulary.setdefault(_spelt(piece), len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = _splitting(settings.separators, runs, spelt=True)
    tokenizer.decoder = decoders.ByteLevel()
    add_control(tokenizer)
    return save(folder, tokenizer, max_context)


def _chunks(text: str) -> list[str]:
    """What stands between control tokens."""
    return [chunk for chunk in _CONTROL.split(text) if chunk]


def _phrases(texts: Sequence[Sequence[str]], settings: LineSettings) -> list[Run]:
    splitting = _splitting(settings.separators, (), spelt=False)
    cut: dict[str, Run] = {}
    for text in texts:
        for chunk in text:
            if chunk not in cut:
                cut[chunk] = tuple(piece for piece, _ in splitting.pre_tokenize_str(chunk))
    return shared_runs([[cut[chunk] for chunk in text] for text in texts], settings.phrases)


def _count(texts: Sequence[Sequence[str]], splitting: Any) -> Counter[str]:
    """Times that each piece is seen."""
    chunks = Counter(chunk for text in texts for chunk in text)
    seen: Counter[str] = Counter()
    for chunk, times in chunks.items():
        for piece, _ in splitting.pre_tokenize_str(chunk):
            seen[piece] += times
    return seen


def _splitting(separators: Sequence[str], phrases: Sequence[Run], *, spelt: bool) -> Any:
    """The pre-tokeniser; `spelt`: its pieces are in the byte-level alphabet."""
    from tokenizers import Regex, pre_tokenizers

    literals = _literals(separators)
    whole = [_pattern(phrase, literals) for phrase in phrases]
    pattern = "|".join((*whole, *(re.escape(text) for text in literals)))
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.Split(Regex(_INDENTATION), behavior="isolated"),
    ]
    if spelt:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _pattern(phrase: Run, literals: Sequence[str]) -> str:
    """Matches the phrase where pieces begin and end alone, so that it never cuts a line in two."""
    border = "|".join(re.escape(text) for text in literals)
    begin = "" if phrase[0] in literals else rf"(?:\A|(?<={border}))"
    if phrase[-1] in literals:
        end = ""
    elif phrase[-1].isspace():
        end = r"(?![ \t])"
    else:
        end = rf"(?=\z|{border})"
    return begin + re.escape("".join(phrase)) + end


def _literals(separators: Sequence[str]) -> list[str]:
    """Separators and their forms within JSON, and within JSON in JSON; the longest first, as the longest is meant."""
    once = [_escaped(text) for text in separators]
    return sorted({*separators, *once, *map(_escaped, once)}, key=lambda text: (-len(text), text))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _spelt(piece: str) -> str:
    """The piece in the byte-level alphabet, as the vocabulary holds it."""
    from tokenizers import pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(part for part, _ in level.pre_tokenize_str(piece))


def _subwords(distinct: Sequence[str], merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Bytes and merges learnt from distinct pieces, each seen once, so that frequent long lines do not use them up."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_BYTES + merges,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(distinct, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return dict(model["vocab"]), [(left, right) for left, right in model["merges"]]
