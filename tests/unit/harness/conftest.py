"""What the tests of adapters share."""

from pathlib import Path

import pytest

from engine.core.records import ImageSpec, Task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(
        id="demo",
        directory=tmp_path,
        instruction="Fix it.",
        split="train",
        fingerprint="0" * 64,
        image=ImageSpec(name="task", suite="bookworm", packages=(), pip=()),
        workdir="/testbed",
        repository=tmp_path,
        tests=tmp_path,
        test_paths=(),
        python_path=(".",),
        fail_to_pass=("t.py::a",),
        pass_to_pass=(),
        reference=None,
        agent_timeout_s=60,
        grade_timeout_s=60,
        memory_mb=512,
        cpus=1,
    )
