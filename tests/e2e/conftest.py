"""Temporary folders of a test's own for whole programs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR of the test's own, with a path short enough for the sockets of vLLM, which `tmp_path` has not."""
    with tempfile.TemporaryDirectory(prefix="lego-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
