"""Text that others wrote, made safe to look at.

Invariant: no character is left that a terminal or a browser obeys instead of showing it: control characters, marks
that turn the direction of text, invisible ones. Each is shown by a sign, so that nothing is hidden by leaving it out.
"""

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""All of Unicode's control, format and surrogate characters but tab and newline, and its line separators."""


def visible(text: str) -> str:
    """ESC as ␛, other control characters likewise, what has no such sign as ⟨U+202E⟩."""
    return text if text.isascii() and text.isprintable() else _OBEYED.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
