"""What a change log says of one release, in the styles that packages use."""

import pytest

from engine.tasks.changelog import release_notes

RST = """
Change History
==============


0.12.1 (2023-12-10)
-------------------

Bug fixes:

- `Issue #84`_: something returns None.


.. _`Issue #84`: https://example.invalid/84


0.12.0 (2023-12-09)
-------------------

- older
"""
MARKDOWN = (
    "# Change Log\n\n## [0.13.2] - 2024-08-14\n\n### Fixed\n\n- A thing.\n\n## [0.13.1] - 2024-08-14\n\n- Other.\n"
)
SHORT = (
    "Release 0.5.5 (Dec 19, 2025)\n----------------------------\n\nBug Fixes\n\n* One\n  more.\n\n\nRelease 0.5.4 (x)\n"
)
PREFIXED = "v7.2.2 (2026-10-15)\n===================\n\n- Fix ``x``.\n\nv7.2.1\n======\n\n- y\n"
LIST = "Changes\n\n- 1.21.0 Allow grouping char\n  (thanks @x)\n- 1.20.2 Template names\n\nCopyright 1.2.3\n"


@pytest.mark.parametrize(
    ("text", "version", "notes"),
    [
        (RST, "0.12.1", "Bug fixes:\n\n- `Issue #84`_: something returns None."),
        (RST, "0.12.0", "- older"),
        (MARKDOWN, "0.13.2", "### Fixed\n\n- A thing."),
        (SHORT, "0.5.5", "Bug Fixes\n\n* One\n  more."),
        (PREFIXED, "7.2.2", "- Fix ``x``."),
        (LIST, "1.21.0", "- Allow grouping char\n  (thanks @x)"),
        (LIST, "1.20.2", "- Template names"),
    ],
)
def test_the_entry_is_found_and_ends_where_the_next_begins(text: str, version: str, notes: str) -> None:
    assert release_notes(text, version) == notes


def test_another_release_is_not_taken_for_it() -> None:
    with pytest.raises(ValueError, match=r"no entry for release 0\.12"):
        release_notes(RST, "0.12")


def test_an_empty_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        release_notes("2.0\n===\n\n1.0\n===\n\n- x\n", "2.0")
