"""Finds what a package's own change log says of one release.

Invariant: the text that is returned is the change log's, less headings' underlines and link targets. Understands
headings (`0.12.1 (2023-12-10)`, `## [0.13.2] - 2024-08-14`, `v7.2.2`, `Release 0.5.5`) and one-line entries
(`- 1.21.0 Allow …`). Refuses a change log that does not name the release: `ValueError`.
"""

import re

_ENTRY = re.compile(
    r"^(?P<mark>[#\-*\s]*)(?:release\s+|version\s+)?\[?v?(?P<version>\d+(?:\.\d+)+)\]?(?P<rest>.*)$", re.I
)
_UNDERLINE = re.compile(r"^([=\-~^*#])\1{2,}\s*$")
_LINK_TARGET = re.compile(r"^\.\. _.*:\s*\S+\s*$|^\[[^\]]+\]:\s*\S+\s*$")


def release_notes(text: str, version: str) -> str:
    """The entry of `version`, without its heading; a one-line entry keeps its text."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _names(line) == version), None)
    if start is None:
        raise ValueError(f"the change log has no entry for release {version}")
    end = next((i for i in range(start + 1, len(lines)) if _names(lines[i]) is not None), len(lines))
    body = lines[start + 1 : end]
    entry = _ENTRY.match(lines[start])
    if entry is not None and entry["mark"].strip() in ("-", "*"):
        body = _item([f"- {entry['rest'].strip()}", *body])
    kept = [line.rstrip() for line in body if not _UNDERLINE.match(line) and not _LINK_TARGET.match(line)]
    notes = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    if not notes:
        raise ValueError(f"the change log's entry for release {version} is empty")
    return notes


def _names(line: str) -> str | None:
    """The release that a heading or entry line opens; None for any other line."""
    entry = _ENTRY.match(line)
    if entry is None or (entry["mark"] and entry["mark"][0].isspace()):
        return None
    return entry["version"]


def _item(lines: list[str]) -> list[str]:
    """A list item's own lines: up to the first that is blank or not indented."""
    end = next((i for i, line in enumerate(lines[1:], start=1) if not line[:1].isspace()), len(lines))
    return lines[:end]
