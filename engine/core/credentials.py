"""What is taken for a credential: by its name, since its value tells nothing."""

import re

HIDDEN = "(hidden)"
"""Stands for the value of one in a message."""
_CREDENTIAL = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(?![A-Z])", re.IGNORECASE)
_COUNTED = re.compile(r"TOKENS", re.IGNORECASE)
"""MAX_TOKENS counts."""


def is_credential(name: str) -> bool:
    """HF_TOKEN, AWS_SECRET_ACCESS_KEY, apikey; not MAX_TOKENS, TOKENIZERS_PARALLELISM."""
    return _CREDENTIAL.search(_COUNTED.sub("", name)) is not None
