"""JSON that holds half a surrogate pair, as serialisers write a text that was cut within a character.

It is not Unicode: half a pair becomes U+FFFD, as it would when decoded anywhere else. NaN, Infinity and what rounds to
it are no numbers of JSON.
"""

import json
from math import isfinite
from typing import Any


def loads_leniently(text: str) -> Any:
    """The JSON value, every text in it valid Unicode. Raises ValueError, RecursionError."""
    return _scrub(json.loads(text, parse_constant=_no_number, parse_float=_finite))


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(written: str) -> float:
    value = float(written)
    return value if isfinite(value) else _no_number("one beyond all floats")


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub_text(key): _scrub(item) for key, item in value.items()}
    return value


def scrub_text(text: str) -> str:
    """The same text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
