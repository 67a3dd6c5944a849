"""What the tests of adapters share."""

from pathlib import Path

import pytest
from record_pieces import a_task

from engine.core.records import Task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return a_task(tmp_path, instruction="Fix it.")
