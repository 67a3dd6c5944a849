"""A GGUF file's metadata by key; a key that is missing is named."""

from collections.abc import Mapping
from typing import Any

from engine.core.errors import RunError

Fields = Mapping[str, Any]


def field(fields: Fields, key: str) -> Any:
    """Raises RunError when the file does not say it."""
    if key not in fields:
        raise RunError(f"the GGUF file does not say {key}")
    return fields[key]
