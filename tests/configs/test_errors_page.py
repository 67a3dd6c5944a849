"""The page of errors names the tests that show them."""

import re

from engine.config.schemas import ROOT


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs/guides/errors.md").read_text()
    named = set(re.findall(r"`(tests/[^`]+)`", page))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
