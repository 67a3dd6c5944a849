"""What is taken for a credential: by its name, since its value tells nothing."""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
"""Stands for the value of one in a message."""
_CREDENTIAL = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(?![A-Z])", re.IGNORECASE)
_COUNTED = re.compile(r"TOKENS", re.IGNORECASE)
"""MAX_TOKENS counts."""
_SHOWN = re.compile(r"\$\{(oc\.env|hidden):\s*[\w.]+\s*\}|\?\?\?|")
"""What may be seen of one: where it comes from, that it is missing, that it is empty."""


def is_credential(name: str) -> bool:
    """HF_TOKEN, AWS_SECRET_ACCESS_KEY, apikey; not MAX_TOKENS, TOKENIZERS_PARALLELISM."""
    return _CREDENTIAL.search(_COUNTED.sub("", name)) is not None


def without_values(value: Any, key: str = "") -> Any:
    """A value as a message may show it: below a credential's name there is nothing to see."""
    if isinstance(value, Mapping):
        return {name: without_values(child, f"{key}.{name}") for name, child in value.items()}
    if isinstance(value, list):
        return [without_values(child, key) for child in value]
    shown = value is None or (isinstance(value, str) and _SHOWN.fullmatch(value))
    return value if shown or not is_credential(key.rpartition(".")[2]) else HIDDEN


def without_rest(text: str) -> str:
    """A text of unknown form, such as an override that cannot be parsed, up to the first credential's name."""
    for word in re.finditer(r"(\w+)['\"]?\s*([=:]?)", text):
        if is_credential(word[1]) and text[word.end() :].strip():
            return text[: word.end()] + ("" if word[2] else " ") + HIDDEN
    return text
