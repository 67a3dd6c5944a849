"""Fixtures that several packages' unit tests share."""

from pathlib import Path

import pytest
from proxy_pieces import TAGGED, make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokeniser and model configuration."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tagged_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, whose chat template writes calls as tags."""
    return make_checkpoint(tmp_path_factory.mktemp("tagged"), TAGGED)
