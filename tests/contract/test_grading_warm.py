"""Grading from a warm process: what one grading does to its interpreter is nothing to the next."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grading_pieces import Bench, calc_task, open_bench, task_image

from engine.core.patch import make
from engine.core.records import Task

SPOIL = """
import json, os, pytest, sys
pytest.marked = json.marked = sys.marked = True
json.dumps = lambda *_, **__: "{}"
os.environ["MARKED"] = "1"
sys.path.insert(0, "/nowhere")
"""
LOOK = """
import json, os, pytest, sys
from pathlib import Path

assert not any(hasattr(module, "marked") for module in (json, pytest, sys))
assert "MARKED" not in os.environ and "/nowhere" not in sys.path
assert os.environ["PYTHONHASHSEED"] == "0" and hash("a") == hash("a")
assert not [name for name in ("enter", "warm_server", "grading_driver") if name in sys.modules]
assert Path("/proc/self/environ").read_bytes()
assert os.stat("/proc/self/fd").st_uid == os.getuid() > 0
assert sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3] == [0, 1, 2]
assert not Path("/run/grader").exists() and not Path("/run/warm").exists()
try:
    Path(f"/proc/{os.getppid()}/environ").read_bytes()
except PermissionError:
    pass
else:
    raise AssertionError("the supervisor is open")
"""


@pytest.fixture(params=["warm", "cold"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with open_bench("grading-warm", start=request.param) as started:
        yield started


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return calc_task.write_calc(tmp_path, task_image())


async def test_what_a_grading_does_to_its_interpreter_is_gone_with_it(bench: Bench, task: Task) -> None:
    def fixed(more: str) -> bytes:
        return calc_task.FIXED_CODE + more.encode()

    def patch(code: bytes):  # type: ignore[no-untyped-def]
        return make([calc_task.change("calc/__init__.py", calc_task.BASE_CODE, code)])

    await bench.grade(task, patch(fixed(SPOIL)))
    seen = await bench.grade(task, patch(fixed(LOOK)))
    assert seen.reward == 1.0, seen.evidence
    assert (await bench.grade(task, make([]))).reward == 0.0


async def test_tested_code_may_have_modules_of_any_name(bench: Bench, task: Task) -> None:
    names = ("enter", "grading_driver", "driver", "warm_server")
    code = calc_task.FIXED_CODE + b"".join(f"import {name}\nassert {name}.mine\n".encode() for name in names)
    changes = [calc_task.change("calc/__init__.py", calc_task.BASE_CODE, code)]
    changes += [calc_task.change(f"{name}.py", None, b"mine = True\n") for name in names]
    verdict = await bench.grade(task, make(changes))
    assert verdict.reward == 1.0, verdict.evidence
